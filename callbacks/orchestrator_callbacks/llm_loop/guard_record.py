"""Rows of guard evaluations in the journal: with each decision of the loop, the inputs from which it follows."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_guards import Verdict, progress
from orchestrator_guards.evaluation import STANDARD, Row, row_of
from orchestrator_guards.turn import digest

WINDOW = "turns"
"""The field of the context that holds the window of the progress guard."""


def record_guards(run: LoopRun, verdicts: Sequence[Verdict]) -> None:
    """Record the evaluations of guards on `run.ctx`. The last one may be the decision for the next edge."""
    rows: list[Row] = []
    for verdict in verdicts:
        if verdict.guard in STANDARD:
            rows.append(verdict[:4])
        elif verdict.guard == "no_progress":
            rows.append((*verdict[:4], _PROGRESS, WINDOW, run.ctx.limits.max_no_progress))
        else:
            rows.append(row_of(verdict))
    run.attach_guards(rows, verdicts[-1])


def keep_window(run: LoopRun) -> None:
    """Put the window itself into the rows of this turn, because the context will not have it any more.

    Tools are named by digests there: the model may have invented a name.
    """
    window = [turn._replace(tools=frozenset(map(digest, turn.tools))) for turn in run.ctx.turns]
    run.replace_in_guards(WINDOW, window)


_PROGRESS = progress.__name__
