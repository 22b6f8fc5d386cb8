"""The interface of an agent that an engine runs: an Agent, a Pipeline, an Rlm or a host's own class."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, runtime_checkable

from typing_extensions import TypeVar

from orchestrator.errors import ConfigError
from orchestrator.runtime.llm_loop.run_options import RunArguments
from orchestrator.runtime.service.hosting import Hosting

AgentResultT_co = TypeVar("AgentResultT_co", default=Any, covariant=True)


class RunLimits(Protocol):
    """The limits of one run. Each agent has its own class of limits."""

    @property
    def max_seconds(self) -> float: ...


class SubmitArguments(RunArguments, total=False):
    """Options of a submitted run, as in `LocalEngine.submit`."""

    agent: str | None
    conversation_id: str | None
    limits: RunLimits | None
    deadline: float | None


@runtime_checkable
class EngineAgent(Protocol[AgentResultT_co]):
    """An agent that executes the runs of one graph. It defines the types of its input and of its results."""

    @property
    def hosting(self) -> Hosting:
        """The engine-only interface of the agent."""
        ...

    parks: bool
    """Whether a run that has to wait for a person is left in the journal instead of waiting in this process."""

    def resume(
        self, run_id: str, /, *, limits: Any = None, by: str = ""
    ) -> Coroutine[Any, Any, AgentResultT_co]:
        """Resume a run of the journal from its last record."""
        ...


def refuse_bound(agent: object) -> None:
    """Raise ConfigError for an agent whose runs work on files of one machine: no other machine could resume them."""
    if place := getattr(agent, "bound_to", ""):
        raise ConfigError(
            f"the runs of {type(agent).__name__} are bound to {place}, so another process could not resume them: "
            "run them there, without an engine"
        )
