"""The benchmark of backtests runs, and its journal has whole runs of 20 turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import backtest


async def test_each_run_of_the_benchmark_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backtest, "KINDS", 5)
    await backtest.fill(tmp_path / "journal.db", 8)
    report = await backtest.tested(tmp_path / "journal.db")
    assert (report.runs, report.harm, report.left_out) == (8, 8, {})
    assert report.stops["harm"].saved.requests == 8 * (backtest.TURNS - 15)
