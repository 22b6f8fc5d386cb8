"""The table of Python versions: how it is read from pytest's output, and that the page has the committed one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import pythons


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ("..\n1104 passed, 1 deselected in 106.91s (0:01:46)\n", "1,104 passed"),
        (
            "F\n=== 2 failed, 13005 passed, 7 skipped, 3 warnings in 9.80s ===\n",
            "13,005 passed, 2 failed, 7 skipped",
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


def test_failed_tests_that_pass_alone_are_counted_apart() -> None:
    first = "2 failed, 10 passed, 1 skipped in 9.80s\n"
    assert pythons.counts_of(first, "2 passed in 1.00s\n") == "10 passed, 2 passed alone, 1 skipped"
    assert (
        pythons.counts_of(first, "1 failed, 1 passed in 1.00s\n")
        == "10 passed, 1 passed alone, 1 failed, 1 skipped"
    )


def test_a_log_of_ci_has_the_cells_of_its_versions_and_tiers() -> None:
    log = (
        "== make check, Python 3.11.7 (3 s since start)\n4 passed in 1.00s\n"
        "== make test, Python 3.13.0 (9 s since start)\n10 passed in 1.00s\n"
        "== make test, Python 3.11.7 (99 s since start)\n1 failed, 11 passed in 1.00s\n"
        "== make campaign, Python 3.11.7 (200 s since start)\n12 passed, 3 deselected in 1.00s (0:00:01)\n"
    )
    assert list(pythons.sections_of(log)) == [
        ("3.13", "test", "10 passed"),
        ("3.11", "test", "11 passed, 1 failed"),
        ("3.11", "campaign", "12 passed"),
    ]


def test_a_cell_from_a_log_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts, page, log = tmp_path / "counts.json", tmp_path / "page.md", tmp_path / "log"
    counts.write_text('{"3.12": {"test": "5 passed"}}')
    page.write_text("<!-- pythons -->\n<!-- /pythons -->\n")
    log.write_text("6 passed in 1.00s\n")
    monkeypatch.setattr(pythons, "COUNTS", counts)
    monkeypatch.setattr(pythons, "PAGE", page)
    for arguments, code in (
        (["--versions", "3.14", "--tiers", "campaign"], 0),
        ([], "pythons: the log has no sections of .ci/run; name its cell: --versions 3.11 --tiers test"),
    ):
        monkeypatch.setattr("sys.argv", ["pythons", "--log", str(log), *arguments])
        with pytest.raises(SystemExit) as end:
            pythons.main()
        assert end.value.code == code
    assert json.loads(counts.read_text()) == {"3.12": {"test": "5 passed"}, "3.14": {"campaign": "6 passed"}}
    assert "| 3.14 | not run | 6 passed | – |" in page.read_text()
    assert "| 3.12 | 5 passed | not run | – |" in capsys.readouterr().out


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
