"""A REPL of its own for each test that asks for one, and contexts with a short life."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from orchestrator.machines.rlm.code_mode import Answer
from orchestrator.repl import ReplLimits, WorkerRepl


@pytest.fixture
def repl() -> Callable[..., WorkerRepl]:
    """Make a real worker REPL; whoever made it closes it."""

    def made(context: Any = None, answers: Sequence[str] = (), **limits: Any) -> WorkerRepl:
        left = list(answers)

        async def broker(prompts: tuple[str, ...]) -> list[Answer]:
            return [left.pop(0) for _ in prompts]

        return WorkerRepl(context, broker=broker, limits=ReplLimits(**limits))

    return made
