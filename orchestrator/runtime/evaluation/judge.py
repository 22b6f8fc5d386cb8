"""Judges: functions of a user that look at the run of a case. One that raises is an error of that case."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from orchestrator.errors import ConfigError
from orchestrator.kernel.thread import called
from orchestrator.kernel.time_limit import TimeLimitPassed, limited
from orchestrator.llm.port import Clock
from orchestrator.runtime.evaluation.case_run import CaseRun
from orchestrator.runtime.evaluation.check import CaseCheck
from orchestrator.tools.result import explain
from orchestrator_guards import Verdict

JUDGE_SECONDS: Final = 120.0
"""Time limit of a judge for one run."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer of a judge with its reason.

    Example:
        return Judgement(score=0.8, reason="polite, but long")
    """

    passed: bool | None = None
    """None: the score decides, by the threshold of the case."""
    reason: str = ""
    score: float | None = None
    """From 0 to 1."""


Judge: TypeAlias = Callable[[CaseRun], Any]
"""A function of a CaseRun, sync (called in a thread) or async. It returns a bool, a score from 0 to 1, a Judgement or a
Verdict of a guard.
"""


def named_judges(judges: Mapping[str, Judge] | Iterable[Judge]) -> dict[str, Judge]:
    """Return name -> judge; a function has its own name. Raises ConfigError."""
    pairs = list(judges.items()) if isinstance(judges, Mapping) else [(_name(one), one) for one in judges]
    for name, judge in pairs:
        if not callable(judge):
            raise ConfigError(f"judge {name!r} is {judge!r:.60}; give a function of a CaseRun")
    if len(dict(pairs)) < len(pairs):
        raise ConfigError("two judges have one name: give them as a dict, or with NAME=MODULE:FUNCTION")
    return dict(pairs)


def _name(judge: object) -> str:
    return str(getattr(judge, "__name__", type(judge).__name__))


async def judge_run(name: str, judge: Judge, run: CaseRun, clock: Clock) -> CaseCheck:
    """Return what a judge says about a run; its error is an error of the case."""
    label = f"judge {name}"
    try:
        said = await limited(lambda: called(judge, run, label), JUDGE_SECONDS, clock)
        found = _judgement(said, run.case.threshold)
    except TimeLimitPassed:
        return CaseCheck(label, passed=False, why=f"no answer within {JUDGE_SECONDS:g} s", error=True)
    except Exception as error:  # noqa: BLE001 - code of the user
        return CaseCheck(label, passed=False, why=explain(error), error=True)
    return CaseCheck(label, bool(found.passed), found.reason, found.score)


def _judgement(said: object, threshold: float) -> Judgement:
    """Return the answer of a judge in one form. Raises TypeError, ValueError for another type or score."""
    if isinstance(said, Verdict):
        return Judgement(said.ok, "" if said.ok else said.explain())
    if isinstance(said, bool):
        return Judgement(said)
    if isinstance(said, int | float):
        said = Judgement(score=float(said))
    if not isinstance(said, Judgement):
        kinds = "a bool, a score from 0 to 1, a Judgement or a Verdict"
        raise TypeError(f"the judge returned {type(said).__name__}; it must return {kinds}")
    if said.score is not None and not (math.isfinite(said.score) and 0 <= said.score <= 1):
        raise ValueError(f"the score is {said.score}; it must be between 0 and 1")
    if said.passed is None:
        if said.score is None:
            raise ValueError("the Judgement has neither passed nor a score")
        reason = said.reason or f"the score is {said.score:g}, the least that passes is {threshold:g}"
        return Judgement(said.score >= threshold, reason, said.score)
    return said
