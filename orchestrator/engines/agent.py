"""What an engine runs: an Orchestrator, a Pipeline, an Rlm, or whatever else carries the runs of one graph."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, runtime_checkable

from orchestrator.errors import ConfigError
from orchestrator.kernel.record import Follower
from orchestrator.runtime.service.hosting import Hosting


@runtime_checkable
class EngineAgent(Protocol):
    """Carries the runs of one graph. What a run is asked and what it gives are its own."""

    @property
    def hosting(self) -> Hosting:
        """Its inside, for the engine that runs it."""
        ...

    parks: bool
    """Its runs are left in the journal where they wait for somebody, and do not wait here."""

    def check(self, run_id: object, conversation_id: object, limits: object, deadline: object, /) -> None:
        """Look at the arguments of one run. Raises ConfigError."""
        ...

    def begin(  # noqa: PLR0917 - what a run is begun with
        self,
        prompt: Any,
        run_id: str,
        conversation_id: str | None,
        limits: Any,
        deadline: float | None,
        follower: Follower | None = None,
        /,
    ) -> Coroutine[Any, Any, Any]:
        """Begin a run and drive it to its end; the arguments are checked. Raises RunExists."""
        ...

    def resume(self, run_id: str, /, *, limits: Any = None, by: str = "") -> Coroutine[Any, Any, Any]:
        """Go on with a run of the journal where it stands."""
        ...


def refuse_bound(agent: object) -> None:
    """Raise ConfigError for what carries runs that work on files of one machine: no other could go on with them."""
    if place := getattr(agent, "bound_to", ""):
        raise ConfigError(
            f"the runs of {type(agent).__name__} are bound to {place}, and nobody elsewhere could go on with them: "
            "run them there, without an engine"
        )
