"""Servers and their clients in one command: a start, cases as shell lines, a stop.

`cases` runs them by `Way.run`, so that one report counts them all. A case's result is its status and
what it printed: as it is if that is short, else as a digest. Of a case that does not end, the stacks of
all processes in its namespace are kept beside the log.
"""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import suite

SECONDS_MAX = 60
SHORT = 300
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# Functions that every line may use.
FUNCTIONS = {
    "bytes": "python3 -c 'import random; import sys; left = int(sys.argv[1]); source = random.Random(1)\n"
             "while left: count = min(left, 1 << 20); left -= count; "
             "sys.stdout.buffer.write(source.randbytes(count))' $1",  # always the same
    "sum": "sha1sum | cut -c1-40",
    "tree": "(cd $1 && find . -type f | sort | xargs sha1sum | sum; find . | wc -l)",
    "until_there": "for turn in $(seq 200); do (: </dev/tcp/127.0.0.1/$1) 2>/dev/null && return; "
                   "sleep .1; done; echo nobody at $1",
}


def cases(way, start, lines, stop="", only=(), env=None, name="session", seconds_max=SECONDS_MAX):
    """`lines` is {case: shell line} or {case: (shell line, seconds)}; returns {case: result}."""
    asked = {}
    for case, line in lines.items():
        line, seconds = line if isinstance(line, tuple) else (line, seconds_max)
        if not only or any(case.startswith(part) for part in only):
            asked[case] = line, seconds
    script = way.folder / f"{name}-cases.json"
    script.write_text(json.dumps({"start": start, "cases": asked, "stop": stop}))
    limit = sum(seconds for _, seconds in asked.values()) + 300
    output, status = way.run([sys.executable, __file__, script], limit, log=f"{name}.log",
                             env={"work": str(way.folder), **(env or {})})
    results = {}
    for line in output.splitlines():
        if line.startswith("case "):
            case, _, result = line[len("case "):].partition(": ")
            results[case] = result
    results[name] = suite.NOT_ENDED if status is None else f"status {status}"
    return results


def told(output):
    # Some programs name folders by what they are behind links.
    for work in {os.path.realpath(os.environ["work"]), os.environ["work"]}:
        output = output.replace(work.encode(), b"$work")
    text = output.decode(errors="replace").strip()
    if len(text) <= SHORT:
        return " ".join(text.split())
    return f"{len(output)} bytes {hashlib.sha1(output).hexdigest()[:10]}"


def stacks(path):
    """Where every process of this namespace is."""
    with open(path, "wb") as out:
        for process in sorted(pathlib.Path("/proc").glob("[0-9]*"), key=lambda p: int(p.name)):
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                kernel = (process / "stack").read_bytes()
            except OSError:
                continue
            out.write(b"\n== %s %s\n%s" % (process.name.encode(), line, kernel))
            out.flush()
            if int(process.name) not in (1, os.getpid()):
                subprocess.run(["timeout", "20", "gdb", "-p", process.name, "-batch", "-ex",
                                "thread apply all bt 30"], stdout=out, stderr=subprocess.DEVNULL,
                               stdin=subprocess.DEVNULL, env=plain())
        for command in [["ss", "-tanpoiem"], [suite.SHUNT, "stat"]]:
            out.write(f"\n== {command}\n".encode())
            out.flush()
            subprocess.run(["timeout", "20", *command], stdout=out, stderr=out, env=plain())


def plain():
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def run(name, line, seconds):
    folder = pathlib.Path(os.environ["work"])
    paths = [folder / f"{name.replace(chr(32), chr(95))}.{kind}" for kind in ("out", "err")]
    functions = {f"BASH_FUNC_{name}%%": f"() {{ {line}; }}" for name, line in FUNCTIONS.items()}
    with open(paths[0], "wb") as out, open(paths[1], "wb") as err:
        child = subprocess.Popen(["bash", "-c", line], stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=err, start_new_session=True, cwd=folder,
                                 env={**os.environ, **functions, "PATH": PATH})
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            stacks(paths[0].with_suffix(".stacks"))
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return suite.NOT_ENDED
    return f"status {status} " + " | ".join(told(path.read_bytes()) for path in paths)


if __name__ == "__main__":
    asked = json.loads(pathlib.Path(sys.argv[1]).read_text())
    print(f"start {run('start', asked['start'], 120)}", flush=True)
    for name, (line, seconds) in asked["cases"].items():
        print(f"case {name}: {run(name, line, seconds)}", flush=True)
    if asked["stop"]:
        print(f"case stop: {run('stop', asked['stop'], 120)}", flush=True)
