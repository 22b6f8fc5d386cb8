"""The benchmark of resumptions runs with both stores."""

from __future__ import annotations

import pytest

from tests.benchmarks import resumption


@pytest.mark.usefixtures("postgres")
def test_a_line_is_printed_for_each_store(capsys: pytest.CaptureFixture[str]) -> None:
    resumption.main(turns=3, rounds=2)
    _, sqlite, postgres = capsys.readouterr().out.splitlines()
    for line, store in ((sqlite, "sqlite"), (postgres, "postgres")):
        assert line.startswith(store)
        assert "median of 2; collections of generations 0 to 2 in each: " in line
