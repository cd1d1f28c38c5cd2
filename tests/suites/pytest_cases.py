"""Has pytest write a line as each case begins and ends, as cpython_cases does: `-p pytest_cases`.

A case that takes more than two minutes ends the run, with the stacks of all threads in the log.
"""

import faulthandler
import json
import os
import re
import sys

SECONDS_MAX = 120
ALL_HEX = re.compile(r"0x[0-9a-f]+")


def tell(case, result):
    with open(os.environ["CASES_TOLD"], "a") as out:
        out.write(json.dumps([ALL_HEX.sub("0x", case), result]) + "\n")


def pytest_runtest_logstart(nodeid):
    faulthandler.dump_traceback_later(SECONDS_MAX, exit=True, file=sys.__stderr__)
    tell(nodeid, None)


def pytest_runtest_logreport(report):
    if report.skipped:
        tell(report.nodeid, "skipped")
    elif report.failed:
        tell(report.nodeid, "failed" if report.when == "call" else f"error in {report.when}")
    elif report.when == "call":
        tell(report.nodeid, "ok")
