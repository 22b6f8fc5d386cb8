"""The keyword arguments of an agent as one type, for signatures that pass them on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypedDict

from typing_extensions import TypeVar

from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.record import Observer
from orchestrator.llm.port import Memory
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.run_options import RunFunction
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.tools.collection import ToolSource
from orchestrator.tools.context import DepsT
from orchestrator.tools.run_context import RunContext
from orchestrator_callbacks.llm_loop.deps import ToolProvider

if TYPE_CHECKING:
    from typing import _SpecialForm as SpecialForm

OutputT = TypeVar("OutputT", default=Any)

TypeForm: TypeAlias = "UnionType | SpecialForm"
"""A type that is no class: `Report | None`, and for mypy also `Literal[...]` and `Annotated[...]`."""
DepsFactory: TypeAlias = Callable[[RunContext], DepsT | Awaitable[DepsT]]
"""Makes the handles of a run, sync or async."""


class AgentArguments(TypedDict, Generic[DepsT], total=False):
    """Keyword arguments of `Agent` except `output_type`, which decides the type of its output."""

    name: str | None
    version: str | None
    tools: Iterable[ToolSource[DepsT]] | ToolProvider
    instructions: str | RunFunction | None
    limits: Limits | None
    retry: RetryPolicy | None
    hooks: Iterable[object]
    graph: Graph
    memory: Memory | None
    deps: DepsT | DepsFactory[DepsT] | None
    params: Mapping[str, Any] | None
    runtime: Runtime | None
    journal: Journal | None
    observers: Iterable[Observer] | None
    launch: Mapping[str, Any] | None
