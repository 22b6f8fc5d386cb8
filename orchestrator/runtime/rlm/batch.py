"""The questions of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from orchestrator.errors import ConfigError
from orchestrator.machines.rlm.limits import RlmLimits
from orchestrator.runtime.llm_loop.conversation import Prompt


class BatchOptions(TypedDict, total=False):
    """Options of every run of a batch, as for `Rlm.run`."""

    run_id: str | None
    conversation_id: str | None
    limits: RlmLimits | None
    deadline: float | None
    metadata: Mapping[str, Any] | None
    tags: Mapping[str, str] | None


def questions_of(questions: object, run_id: object) -> list[tuple[Prompt, Any]]:
    """Return prompt and context of each question of a batch. Raises ConfigError for an invalid question."""
    if isinstance(questions, str | bytes) or not isinstance(questions, Iterable):
        kind = type(questions).__name__
        raise ConfigError(f"the questions are {kind}; give a list of prompts, or of (prompt, context)")
    found: list[Any] = [one if isinstance(one, tuple) else (one, None) for one in questions]
    for number, one in enumerate(found, 1):
        if len(one) != 2:  # noqa: PLR2004 - prompt and context
            raise ConfigError(
                f"question {number} is a tuple of {len(one)}; give a prompt, or (prompt, context)"
            )
    if run_id is not None and len(found) > 1:
        raise ConfigError(f"run_id is {run_id!r}, but a batch of {len(found)} has as many runs; omit it")
    return found
