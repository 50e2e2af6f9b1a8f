"""python -m tests.attacks: run every attack and print the table: attack, what stops it, at which level."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


class Outcomes:
    """Collects what became of each attack."""

    def __init__(self):
        self.found = {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.partition("test_attack[")[2].removesuffix("]")
        if name and (report.when == "call" or report.outcome != "passed"):
            words = {"passed": "stopped", "failed": "NOT STOPPED", "skipped": "skipped"}
            self.found[name] = words[report.outcome]


outcomes = Outcomes()
code = pytest.main([str(HERE), "-q", "--no-header", *sys.argv[1:]], plugins=[outcomes])
import table  # noqa: E402  (pytest has put this folder on the path and filled the table)

table.print_table(outcomes.found)
sys.exit(code)
