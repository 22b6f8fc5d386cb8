"""An Rlm for the engine that runs it: what operators order about models and tools reaches its runs, and those below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.runtime.service.hosting import Host, Hosting
from orchestrator_callbacks.rlm.deps import HostReference


class ModeHosting(Hosting):
    """The inside of an Rlm. `hosted` is what its runs ask; `models` are that of the run and that of its questions."""

    def __init__(
        self, *parts: Any, hosted: HostReference, models: Sequence[str], tools: Sequence[str]
    ) -> None:
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
