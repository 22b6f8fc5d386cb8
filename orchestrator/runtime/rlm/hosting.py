"""Engine-only interface of an Rlm, which applies operator commands to its runs and their child runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.runtime.service.hosting import BeginRun, CheckRun, Host, Hosting
from orchestrator_callbacks.rlm.deps import HostReference


class ModeHosting(Hosting):
    """Engine-only interface of an Rlm.

    `hosted` refers to the engine; `models` are those of the run and of its queries.
    """

    def __init__(
        self,
        *parts: Any,
        hosted: HostReference,
        models: Sequence[str],
        tools: Sequence[str],
        check: CheckRun,
        begin: BeginRun,
    ) -> None:
        super().__init__(*parts, check=check, begin=begin)
        self._hosted = hosted
        self._models = tuple(dict.fromkeys(models))
        self.model = self._models[0]
        self.tools = tuple(tools)

    @property
    def models(self) -> tuple[str, ...]:
        """The configured names of all models of its runs."""
        return self._models

    def obey(self, host: Host | None) -> None:
        """Set the host that is asked before each model and tool call, or None."""
        self._hosted.host = host

    def tree(self) -> Sequence[Hosting]:
        """Return only this one: child runs use the same models."""
        return [self]
