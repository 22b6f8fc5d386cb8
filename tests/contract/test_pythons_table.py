"""The table of Python versions: how it is read from pytest's output, and that the page has the committed one."""

from __future__ import annotations

import json

import pytest

from tests import pythons


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ("..\n1104 passed, 1 deselected in 106.91s (0:01:46)\n", "1,104 passed"),
        (
            "F\n=== 2 failed, 13005 passed, 7 skipped, 3 warnings in 9.80s ===\n",
            "2 failed, 13,005 passed, 7 skipped",
        ),
        ("3 passed in 1.00s\nmake: done\n5 passed, 2 xfailed in 2.00s\n", "5 passed, 2 xfailed"),
        (
            "set-up\ntest-python: no Python 3.15 on this machine, and …\n",
            "no Python 3.15 on this machine, and …",
        ),
        ("", "no output"),
    ],
)
def test_a_cell_has_the_counts_of_the_closing_line_or_the_reason(said: str, counts: str) -> None:
    assert pythons.counts_of(said) == counts


def test_each_version_has_a_row_and_each_tier_a_column() -> None:
    counts = {"3.11": {"test": "1 passed", "campaign": "2 passed"}, "3.14": {"test": "no Python 3.14"}}
    assert pythons.table(counts).splitlines()[2:6] == [
        "| 3.11 | 1 passed | 2 passed | not run |",
        "| 3.12 | not run | not run | – |",
        "| 3.13 | not run | not run | – |",
        "| 3.14 | no Python 3.14 | not run | – |",
    ]


def test_the_page_has_the_table_of_the_committed_counts() -> None:
    counts = json.loads(pythons.COUNTS.read_text()) if pythons.COUNTS.exists() else {}
    page = pythons.PAGE.read_text()
    assert "<!-- pythons -->" in page
    assert pythons.with_table(page, counts) == page
    again = pythons.with_table(page, {"3.11": {"test": "1 passed"}})
    assert "| 3.11 | 1 passed |" in again
    assert pythons.with_table(again, counts) == page


def test_the_versions_are_those_of_the_package() -> None:
    from tests.contract.test_pythons import VERSIONS

    assert list(pythons.VERSIONS) == VERSIONS
