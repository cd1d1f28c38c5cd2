"""Runs Python's unittest and writes a line as each case begins and ends, as cpython_cases does.

Arguments: the file, and what follows `python3 -m unittest`.
"""

import sys
import unittest

import cpython_cases

if __name__ == "__main__":
    cpython_cases.watch(sys.argv.pop(1))
    sys.path[0] = ""
    unittest.main(module=None)
