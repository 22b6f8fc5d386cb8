"""Judge an answer of a person to a question about a call. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from orchestrator.machines.llm_loop.model import Question
from orchestrator.tools.input_request import InputAnswer, read_answer, request_of
from orchestrator_guards import Refusal, judge_answer


def judge(
    asked: Collection[Question],
    decided: Mapping[str, Mapping[str, Any]],
    answer: Mapping[str, Any],
    *,
    now: float,
) -> Question | Refusal:
    """Return the question of an answer, or the reason why it does not count. Arguments as for `judge_answer`.

    An answer to a request for input must fit its form, unless it ends the run.
    """
    found = judge_answer(asked, decided, answer, now=now)
    if isinstance(found, Refusal) or found.input is None or answer.get("end"):
        return found
    given = read_answer(request_of(found.input), answer)
    return found if isinstance(given, InputAnswer) else Refusal("input", given)
