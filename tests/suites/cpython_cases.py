"""Runs CPython's regression tests and writes a line as each case begins and ends.

A case that takes more than two minutes ends the run, with the stacks of all threads in the log.
"""

import faulthandler
import json
import re
import sys
import unittest

SECONDS_MAX = 120


def tell(test, result):
    with open(FILE, "a") as out:
        out.write(json.dumps([test.id(), result]) + "\n")


def wrap(name, result_of):
    genuine = getattr(unittest.TestResult, name)

    def wrapped(self, test, *rest):
        tell(test, result_of(*rest))
        return genuine(self, test, *rest)

    setattr(unittest.TestResult, name, wrapped)


def begin(*_):
    faulthandler.dump_traceback_later(SECONDS_MAX, exit=True, file=sys.__stderr__)


def watch(file):
    global FILE
    FILE = file
    wrap("startTest", begin)
    wrap("addSuccess", lambda: "ok")
    wrap("addError", lambda error: f"error {error[0].__name__}")
    wrap("addFailure", lambda error: "failed")
    wrap("addSkip", lambda reason: "skipped: " + re.sub(r"\d+", "N", reason))
    wrap("addSubTest", lambda part, error: error and f"failed {part}")
    wrap("addExpectedFailure", lambda error: "expected failure")
    wrap("addUnexpectedSuccess", lambda: "unexpected success")


def main():
    from test import libregrtest
    watch(sys.argv.pop(1))
    libregrtest.main()


# Children that multiprocessing spawns load this file, too.
if __name__ == "__main__":
    main()
