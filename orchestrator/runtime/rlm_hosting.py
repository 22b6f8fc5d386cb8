"""An Rlm for the engine that runs it: what operators order about models and tools reaches its runs, and those below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.errors import LLMError
from orchestrator.kernel.parking import Park
from orchestrator.runtime.hosting import Host, Hosting
from orchestrator_callbacks.rlm.deps import Hosted, ModeRun, allowed


class ModeHosting(Hosting):
    """The inside of an Rlm. `hosted` is what its runs ask; `models` are that of the run and that of its questions."""

    def __init__(self, *parts: Any, hosted: Hosted, models: Sequence[str], tools: Sequence[str]) -> None:
        super().__init__(*parts)
        self._hosted = hosted
        self._models = tuple(dict.fromkeys(models))
        self.model = self._models[0]
        self.tools = tuple(tools)

    @property
    def models(self) -> tuple[str, ...]:
        """The configured names of all models that its runs ask."""
        return self._models

    def obey(self, host: Host | None) -> None:
        """Let a host be asked, or nobody, before each call of a model and of a tool."""
        self._hosted.host = host

    def tree(self) -> Sequence[Hosting]:
        """Return this one: its runs below are of the same models."""
        return [self]


async def question_allowed(run: ModeRun, model: str) -> None:
    """Return when a question of the code may be asked. Raises LLMError where the run cannot wait in its midst."""
    try:
        await allowed(run, model)
    except Park as wish:
        by, why = wish.detail.get("by"), wish.detail.get("why")
        raise LLMError(f"the model {model} is blocked by {by}" + (f": {why}" if why else "")) from None
