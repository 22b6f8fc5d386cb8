"""Engine-only interface of an Rlm, which applies operator commands to its runs and their child runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.runtime.rlm.mode import tool_names
from orchestrator.runtime.rlm.run_setup import RunResources
from orchestrator.runtime.service.hosting import BeginRun, CheckRun, Host, Hosting
from orchestrator_callbacks.rlm.deps import HostReference


class ModeHosting(Hosting):
    """Engine-only interface of an Rlm.

    `hosted` refers to the engine; `resources` has the models and the tools of the run and of its queries.
    """

    def __init__(
        self,
        *parts: Any,
        hosted: HostReference,
        resources: RunResources,
        check: CheckRun,
        begin: BeginRun,
    ) -> None:
        super().__init__(*parts, check=check, begin=begin)
        self._hosted = hosted
        self._models = tuple(dict.fromkeys(resources.models))
        self.model = self._models[0]
        self.tools = tuple(tool_names(resources.offered()))

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
