"""What all suites share: two ways to run, results by case, the table.

A suite is a script beside this file. It gives `main` a function that runs all its cases once, by
way of `Way.run`, and returns a result for each case by name. Each way gets a folder and a network
namespace of its own, where ports are free and nothing but this suite uses the loopback device.
"""

import argparse
import collections
import fcntl
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent.parent / "target")).resolve()
SHUNT = os.environ.get("SHUNT_COMMAND", str(TARGET / "release" / "shunt"))

NOT_ENDED = "did not end"


class Way:
    """Plain or accelerated, in a folder of its own."""

    def __init__(self, name, folder, at_once=False):
        self.name = name
        self.folder = folder
        self.accelerated = name != "plain"
        self.settings = {"SHUNT_PAIR": "at_once"} if self.accelerated and at_once else {}
        self.totals = collections.Counter()
        self.reasons = collections.Counter()
        self.eligible_on_tcp = collections.Counter()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        folder.chmod(0o777)

    def run(self, command, seconds_max, cwd=None, user=None, env=None, log="log"):
        """Runs a command in a namespace of its own; returns its output and status.

        The status is None if it had to be ended."""
        report = self.folder / f"{log}.json"
        report.unlink(missing_ok=True)
        if self.accelerated:
            command = [SHUNT, "run", "--report", str(report), "--", *command]
        # The shell is process 1 of the namespace, which signals spare: no program is to be that.
        inside = 'ip link set lo up; "$@"; exit $?'
        # A suite that is ended leaves nobody behind.
        wrapped = ["setpriv", "--pdeathsig", "KILL", "unshare", "-n", "--pid", "--fork", "--mount-proc", "--kill-child",
                   "sh", "-c", inside, "sh"]
        if user:
            wrapped += ["setpriv", "--reuid", user, "--regid", user, "--init-groups"]
            report.touch()
            shutil.chown(report, user)
        path = self.folder / log
        with open(path, "ab") as out:
            start = out.tell()
            child = subprocess.Popen(
                wrapped + [str(word) for word in command],
                cwd=cwd or self.folder, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, env={**os.environ, **self.settings, **(env or {})},
                start_new_session=True)
            try:
                status = child.wait(seconds_max)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                status = None
        self._add(report)
        with open(path, "rb") as written:
            written.seek(start)
            return written.read().decode(errors="replace"), status

    def _add(self, report):
        if not self.accelerated or not report.exists() or not report.stat().st_size:
            return
        totals = json.loads(report.read_text())["totals"]
        for name in ("streams", "streams_upgraded", "streams_eligible",
                     "streams_eligible_upgraded"):
            self.totals[name] += totals[name]
        self.reasons.update(totals["pass_through"])
        self.eligible_on_tcp.update(totals["eligible_on_tcp"])


SOURCES = pathlib.Path("/var/tmp/shunt-suites/sources")


def install(*packages):
    """Debian packages; nothing happens when they are there."""
    known = subprocess.run(["dpkg", "-s", *packages], capture_output=True)
    if known.returncode:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *packages],
                       check=True, stdout=subprocess.DEVNULL)


def source(package, version=None):
    """The source of a Debian package, unpacked; returns its folder.

    The machine's own list of sources is left as it is: a copy of it names the sources."""
    folder = SOURCES / package
    if not folder.exists():
        scratch = folder.with_name(folder.name + ".unpack")
        shutil.rmtree(scratch, ignore_errors=True)
        for part in ("sources", "lists", "unpacked"):
            (scratch / part).mkdir(parents=True)
        for path in pathlib.Path("/etc/apt/sources.list.d").glob("*.sources"):
            text = path.read_text().replace("Types: deb\n", "Types: deb-src\n")
            (scratch / "sources" / path.name).write_text(text)
        apt = ["apt-get", "-o", f"Dir::Etc::sourceparts={scratch}/sources",
               "-o", f"Dir::State::lists={scratch}/lists"]
        subprocess.run([*apt, "update"], check=True, stdout=subprocess.DEVNULL)
        # A mirror may have lost the source of the newest: the one before it does.
        known = subprocess.run(["apt-cache", *apt[1:], "showsrc", "--only-source", package], check=True,
                               stdout=subprocess.PIPE, text=True).stdout
        versions = [version] if version else re.findall(r"^Version: (\S+)$", known, re.M)
        compare = functools.cmp_to_key(lambda a, b: 1 - 2 * subprocess.run(
            ["dpkg", "--compare-versions", a, "gt", b]).returncode)
        for asked in sorted(set(versions), key=compare, reverse=True):
            done = subprocess.run([*apt, "source", f"{package}={asked}"], cwd=scratch / "unpacked",
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if done.returncode == 0:
                break
        (unpacked,) = [path for path in (scratch / "unpacked").iterdir() if path.is_dir()]
        unpacked.rename(folder)
        shutil.rmtree(scratch)
    return folder


def python_with(name, *packages):
    """Debian's Python with packages of PyPI, in a folder of their own."""
    folder = SOURCES / f"{name}-python"
    done = folder / "done"
    if not done.exists():
        install("python3-venv")
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--clear", folder], check=True)
        if packages:
            subprocess.run([folder / "bin/pip", "install", "-q", *packages], check=True)
        done.touch()
    return folder / "bin/python3"


def source_of_python(package, version):
    """The source of a PyPI package, unpacked; returns its folder."""
    folder = SOURCES / f"{package}-{version}"
    if not folder.exists():
        pip = python_with("pip").with_name("pip")
        subprocess.run([pip, "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", SOURCES,
                        f"{package}=={version}"], check=True)
        subprocess.run(["tar", "xf", f"{folder}.tar.gz"], cwd=SOURCES, check=True)
    return folder


def cases_told(path):
    """What the lines say that cpython_cases wrote: results by case, and the case under way."""
    results, begun = {}, None
    for line in path.read_text().splitlines() if path.exists() else []:
        name, result = json.loads(line)
        if result:
            results[name], begun = result, None
        else:
            begun = name
    return results, begun


def tap(output):
    """The number, name and result of each case in TAP (testanything.org), of those within others as well."""
    cases = re.findall(r"^ *(not )?ok (\d+)(?: +- | +|$)(.*?)(# skip.*)?$", output, re.M | re.I)
    for wrong, number, name, skipped in cases:
        yield number, name.strip(), "skipped" if skipped else "failed" if wrong else "ok"


def run_unittest(way, name, arguments, seconds_max, python="/usr/bin/python3", **how):
    """Runs Python's unittest; returns results by case."""
    told = way.folder / f"{name}.cases"
    told.unlink(missing_ok=True)
    command = [python, HERE / "unittest_cases.py", told, "-v", *arguments]
    _, status = way.run(command, seconds_max, log=f"{name}.log", **how)
    results, begun = cases_told(told)
    if begun:
        results[begun] = NOT_ENDED
    results[name] = NOT_ENDED if status is None else f"status {status}"
    return results


def run_pytest(way, name, arguments, seconds_max, python, env=None, before=(), **how):
    """Runs pytest, after `before` if a command is to start it; returns results by case."""
    told = way.folder / f"{name}.cases"
    told.unlink(missing_ok=True)
    command = [*before, python, "-m", "pytest", "-q", "-p", "pytest_cases", "-p", "no:cacheprovider",
               "-p", "no:faulthandler", *arguments]
    env = {"CASES_TOLD": str(told), "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    _, status = way.run(command, seconds_max, log=f"{name}.log", env=env, **how)
    results, begun = cases_told(told)
    results = {f"{name} {case}": result for case, result in results.items()}
    if begun:
        results[f"{name} {begun}"] = NOT_ENDED
    results[name] = NOT_ENDED if status is None else f"status {status}"
    return results


def differing(plain, accelerated):
    """Names of cases whose results differ, or that only one way has."""
    return sorted(name for name in plain.keys() | accelerated.keys()
                  if plain.get(name) != accelerated.get(name))


def unsteady(runs):
    """Cases that differ among runs of the same kind."""
    names = set().union(*runs)
    return {name for name in names if len({run.get(name) for run in runs}) > 1}


def main(name, run_once):
    """`run_once(way, arguments)` returns {case: result}."""
    parser = argparse.ArgumentParser(description=f"{name}, plain and under shunt run")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each kind")
    parser.add_argument("--at-once", action="store_true",
                        help="SHUNT_PAIR=at_once: streams of a few messages reach a ring, too")
    parser.add_argument("--work", default=f"/var/tmp/shunt-suites/{name}", help="folder for results")
    parser.add_argument("only", nargs="*", help="parts of the suite")
    arguments = parser.parse_args()
    if not os.access(SHUNT, os.X_OK):
        sys.exit(f"{SHUNT} does not exist: make build")
    work = pathlib.Path(arguments.work)
    # Suites write beside their sources: two runs at a time would disturb each other.
    SOURCES.mkdir(parents=True, exist_ok=True)
    lock = open(SOURCES / f"{name}.lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    results = {"plain": [], "accelerated": []}
    for turn in range(arguments.repeat):
        for kind, runs in results.items():
            way = Way(kind, work / f"{kind}-{turn}", arguments.at_once)
            runs.append(run_once(way, arguments.only))
            (way.folder / "results.json").write_text(json.dumps(runs[-1], indent=1))
    # `way` is the last accelerated one.
    title = f"{name}, paired at once" if arguments.at_once else name
    sys.exit(show(title, results, way))


def show(title, results, way):
    plain, accelerated = results["plain"], results["accelerated"]
    flaky = unsteady(plain)
    different = {case for a, b in zip(plain, accelerated) for case in differing(a, b)}
    cases = set().union(*plain, *accelerated)
    ran = [r for r in plain[-1].values() if not r.startswith("skipped")]
    eligible = way.totals["streams_eligible"]
    upgraded = way.totals["streams_eligible_upgraded"]
    share = f"{100 * upgraded / eligible:.0f} %" if eligible else "none eligible"
    print("| suite | cases | not skipped | same | different | streams | on the ring of eligible |")
    print("|---|---|---|---|---|---|---|")
    print(f"| {title} | {len(cases)} | {len(ran)} | {len(cases - different)} "
          f"| {len(different - flaky)} | {way.totals['streams']} "
          f"| {upgraded} of {eligible} ({share}) |")
    for case in sorted(different):
        note = " (differs between plain runs, too)" if case in flaky else ""
        told = [f"{a.get(case)} / {b.get(case)}" for a, b in zip(plain, accelerated)]
        print(f"- {case}: plain / accelerated {'; '.join(told)}{note}")
    print(f"on a ring at some time: {way.totals['streams_upgraded']} of all streams")
    print("reasons:", dict(way.reasons.most_common()))
    print("of eligible streams:", dict(way.eligible_on_tcp.most_common()))
    return 1 if different - flaky else 0
