"""The default of `max_no_progress` is the limit with the best precision at full recall, and harms no recorded run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from orchestrator import Limits
from orchestrator.backtest import Policy, sweep
from orchestrator.runtime.runs.runs import Runs
from tests.runtime.progress_sweep import GUIDE, PICTURE, figures, picture, table
from tests.runtime.recorded_conversations import played

ROOT = Path(__file__).parents[2]
COPIES = ROOT / "tests/data/trajectories"
CORPUS = ROOT.parent / "shared/data/trajectories"


def test_the_default_has_the_best_precision_among_the_limits_with_the_best_recall() -> None:
    found = list(figures())
    most = max(one.recall for one in found)
    best = max((one for one in found if one.recall == most), key=lambda one: one.precision)
    assert best.limit == Limits().max_no_progress
    assert (best.precision, best.recall) >= (0.95, 0.95)


def test_the_guide_has_the_figures() -> None:
    assert table() in (ROOT / GUIDE).read_text(encoding="utf-8"), "run `make accept`"
    assert picture() == (ROOT / PICTURE).read_text(encoding="utf-8"), "run `make accept`"


@pytest.mark.parametrize(
    ("corpus", "runs", "warned"),
    [
        pytest.param(COPIES, 71, {1: 48, 2: 0, 3: 0}, id="copies"),
        pytest.param(CORPUS, 977, {1: 575, 2: 3, 3: 1}, id="all", marks=pytest.mark.campaign),
    ],
)
async def test_the_default_stops_no_recorded_conversation(
    corpus: Path, runs: int, warned: dict[int, int], absent: Callable[[str], NoReturn]
) -> None:
    if not corpus.is_dir():
        absent("no corpus of conversations beside the repository (../shared/data/trajectories)")
    wide = {"max_no_progress": 50, "max_repeated_success": 0, "max_tool_errors": 0, "max_iterations": 0}
    journal, _ = await played(corpus, wide)
    reports = await sweep(Runs(journal), {str(limit): Policy({"max_no_progress": limit}) for limit in warned})
    assert [report.runs for report in reports] == [runs] * len(warned)
    assert {int(report.label): report.other_message for report in reports} == warned
    assert [report.harm + report.assumed["harm"].runs for report in reports[1:]] == [0, 0]
