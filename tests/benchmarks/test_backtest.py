"""The benchmark of backtests runs, and its journal has whole runs of 20 turns."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks import backtest


async def test_each_run_of_the_benchmark_is_evaluated(tmp_path: Path) -> None:
    await backtest.fill(tmp_path / "journal.db", 60)
    report = await backtest.tested(tmp_path / "journal.db")
    assert (report.runs, report.harm, report.left_out) == (60, 60, {})
    assert report.stops["harm"].saved.requests == 60 * (backtest.TURNS - 15)
