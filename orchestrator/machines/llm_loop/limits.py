"""Limits of the LLM loop. 0 disables a limit; there are no on/off switches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Literal

from orchestrator.errors import ConfigError
from orchestrator.kernel.clock import GRACE
from orchestrator.machines.bound import (
    ON_TOOL_ERROR,
    ON_TRUNCATED,
    ON_UNKNOWN_COST,
    by_name,
    out_of_range,
    unknown_word,
)
from orchestrator_guards import tool_key
from orchestrator_guards.money import limit_micros


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one run. A limit of N allows exactly N; 0 means unlimited or off.

    Raises:
        ConfigError: A name is unknown, a number is negative, or a share is out of range.

    Example:
        Limits(max_iterations=20, max_seconds=300, tool_caps={"search": 5})
    """

    max_iterations: int = 100
    """Requests to the model, including completion retries and restarts."""
    max_tool_errors: int = 10
    """Consecutive errors of one tool."""
    max_repeated_success: int = 3
    """Consecutive executions of one call with the same arguments and the same successful result."""
    max_no_progress: int = 3
    """Repetitions of a whole turn, or of a cycle of turns, without progress."""
    max_input_tokens: int = 0
    max_output_tokens: int = 0
    max_cost: float = 0.0
    """Cost in the currency of the price table, counted in millionths.

    A request whose maximum cost is known (with `max_tokens` among the parameters) is not sent if it can exceed the
    rest of the limit. Otherwise the cost may exceed the limit by the cost of one answer.
    """
    on_unknown_cost: Literal["stop", "ignore"] = field(default="stop", metadata={"fingerprint": None})
    """Handling of an answer of unknown cost under `max_cost`.

    `stop`: an agent without known prices is rejected, and an answer of unknown cost ends the run. `ignore`: it counts
    as 0.
    """
    max_seconds: float = 0.0
    """Wall time of the run; a request or tool in flight is interrupted."""
    max_tool_calls: int = 0
    """Tool calls of all tools together."""
    tool_caps: Mapping[str, int] = field(default_factory=dict)
    """Tool name (case-insensitive) -> calls of that tool. Checked before the tool runs."""
    max_retries: int = 0
    """Retries of model requests over the whole run. Each request also has its own RetryPolicy."""
    max_handoffs: int = field(default=10, metadata={"fingerprint": None})
    """Handoffs between the agents of a team in one run."""
    max_concurrent_tools: int = 10
    """Tools of one turn that run concurrently."""
    completion_retries: int = 2
    """Further requests after an unusable final answer."""
    on_truncated: Literal["accept", "retry"] = field(default="accept", metadata={"fingerprint": None})
    """Handling of a free-text answer that the output limit cut.

    `accept`: the run ends as partial (truncated) with that text. `retry`: the model is asked for a shorter answer while
    completion retries are left. An answer with an `output_type` is requested again in either case.
    """
    on_tool_error: Literal["return", "raise_bugs", "raise"] | None = field(
        default=None, metadata={"fingerprint": None}
    )
    """Handling of an exception of a tool that does not say it itself (`@tool(errors=…)`).

    `return`: the model reads it and the run continues. `raise_bugs`: an exception that is a fault of the code, such as
    a KeyError or a NameError, also ends the run as failed (tool_error). `raise`: every exception does. None is
    `return`, and `raise_bugs` in tests, where the pytest plugin sets ORCHESTRATOR_ON_TOOL_ERROR.
    """
    max_restarts: int = 0
    restart_stall_threshold: int = 2
    """Repetitions without progress after which the loop restarts, while restarts are left."""
    context_limit: int = 0
    """Tokens of the model's context window. 0 uses the `context_window` of the model, if known."""
    context_warnings: tuple[float, ...] = (0.70, 0.85)
    """Shares of the context limit at which the run notes that the context fills up; each once until compaction."""
    compaction_threshold: float = 0.0
    """Share of the context limit at which a summary replaces older messages."""
    compaction_cooldown: int = 2
    """Iterations between two compactions."""
    guidance: int = 0
    """Number of failed calls, and of successful calls, that the model is reminded of."""
    wrap_up_turns: int = 0
    """1 reserves one last turn without tools for an answer when a limit is reached."""
    wrap_up_share: float = 0.1
    """Share of the token, cost and time limits that is reserved for that turn."""
    approval_seconds: float = 604_800.0
    """Seconds that a person may take to decide on a call; after that it is answered as rejected. Default: a week."""
    memory_seconds: float = 30.0
    """Maximum seconds for each call of the memory port."""
    cancel_seconds: float = field(default=GRACE, metadata={"fingerprint": None})
    """Seconds that a cancelled tool, model, memory or hook may take to end; after that it is abandoned, and the run
    continues or ends without it. 0 waits without limit."""

    @property
    def max_cost_micros(self) -> int:
        """`max_cost` in millionths of the currency."""
        return limit_micros(self.max_cost)

    def __post_init__(self) -> None:
        if fault := next(chain(_misfits(self), _faults(self)), None):
            raise ConfigError(f"limit {fault}")
        object.__setattr__(self, "tool_caps", {tool_key(tool): cap for tool, cap in self.tool_caps.items()})
        object.__setattr__(self, "context_warnings", tuple(sorted(self.context_warnings)))


def _misfits(limits: Limits) -> Iterator[str]:
    """Yield an error text for each collection that has the wrong type."""
    caps: object = limits.tool_caps
    if not isinstance(caps, Mapping):
        yield f"tool_caps is {caps!r}; it must be {{tool: calls}}"
    if not _is_shares(limits.context_warnings):
        yield f"context_warnings is {limits.context_warnings!r}; it must be shares, as (0.7, 0.85)"
    if fault := unknown_word("on_unknown_cost", limits.on_unknown_cost, ON_UNKNOWN_COST):
        yield fault
    if fault := unknown_word("on_truncated", limits.on_truncated, ON_TRUNCATED):
        yield fault
    if limits.on_tool_error is not None and (
        fault := unknown_word("on_tool_error", limits.on_tool_error, ON_TOOL_ERROR)
    ):
        yield fault


def _faults(limits: Limits) -> Iterator[str]:
    """Yield an error text for each value that is out of range."""
    numbers = {item.name: getattr(limits, item.name) for item in fields(limits) if item.name in _WHOLE}
    numbers |= {f"tool_caps[{tool!r}]": cap for tool, cap in limits.tool_caps.items()}
    for name, value in numbers.items():
        if fault := out_of_range(name, value, whole=_WHOLE.get(name, True)):
            yield fault
            return
    if limits.wrap_up_turns not in {0, 1}:
        yield f"wrap_up_turns is {limits.wrap_up_turns}; it must be 0 or 1"
    for name in ("wrap_up_share", "compaction_threshold"):
        if not numbers[name] < 1:
            yield f"{name} is {numbers[name]}; it must be at least 0 and below 1"
    for share in limits.context_warnings:
        if not 0 < share <= 1:
            yield f"context_warnings has {share}; each must be above 0 and at most 1"


def _is_shares(value: object) -> bool:
    given = value if isinstance(value, Sequence) and not isinstance(value, str) else (None,)
    return all(isinstance(one, int | float) for one in given)


_WHOLE = {
    item.name: isinstance(item.default, int)
    for item in fields(Limits)
    if isinstance(item.default, int | float)
}
"""Numeric limit -> whether it is a whole number."""

OFF = Limits(
    max_iterations=0,
    max_tool_errors=0,
    max_repeated_success=0,
    max_no_progress=0,
    max_concurrent_tools=0,
    completion_retries=0,
)
"""No limits: for the replay of recorded conversations."""
