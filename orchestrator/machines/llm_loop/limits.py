"""Limits of the LLM loop. Numbers where 0 disables; there are no on/off switches beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Literal

from orchestrator.errors import ConfigError
from orchestrator.kernel.clock import GRACE
from orchestrator.machines.bound import ON_UNKNOWN_COST, by_name, out_of_range, unknown_word
from orchestrator_guards import tool_key
from orchestrator_guards.money import limit_micros


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run may use. A limit of N allows exactly N; 0 is unlimited, or off.

    Defaults are seed 003's. Raises ConfigError on a name that is none, a negative number or a share outside
    its range.
    """

    max_iterations: int = 100
    """Requests to the model, completion retries and restarts included."""
    max_tool_errors: int = 10
    """Consecutive errors of one tool."""
    max_repeated_success: int = 3
    """Executions in a row of one call with the same arguments and the same successful result."""
    max_no_progress: int = 3
    """Repeats of a whole turn, or of a cycle of turns, without progress."""
    max_input_tokens: int = 0
    max_output_tokens: int = 0
    max_cost: float = 0.0
    """In the currency of the price table, counted in millionths of it.

    A request that can cost more than what is left is not made, where the most that it can cost is known: with
    `max_tokens` among the parameters. Else the cost may exceed the limit by that of one answer.
    """
    on_unknown_cost: Literal["stop", "ignore"] = field(default="stop", metadata={"fingerprint": None})
    """What `max_cost` does where the cost of an answer is unknown.

    `stop`: an agent is refused where no price can be known, and such an answer ends the run. `ignore`: it counts as 0.
    """
    max_seconds: float = 0.0
    """Wall time of the run; a request or tool in flight is interrupted."""
    max_tool_calls: int = 0
    """Tool calls of all tools together."""
    tool_caps: Mapping[str, int] = field(default_factory=dict)
    """Tool name (case does not count) -> calls of that tool. Checked before the tool runs."""
    max_retries: int = 0
    """Repeated tries of model requests over the whole run; each request has its own RetryPolicy besides."""
    max_concurrent_tools: int = 10
    """Tools of one turn that run at once."""
    completion_retries: int = 2
    """Further requests when the final answer is unusable."""
    max_restarts: int = 0
    restart_stall_threshold: int = 2
    """Repeats without progress at which the loop starts over, while restarts are left."""
    context_limit: int = 0
    """Tokens the model can read at once; 0 takes the model's own `context_window`, if it names one."""
    context_warnings: tuple[float, ...] = (0.70, 0.85)
    """Shares of the context limit at which the run notes that the context fills up; each once until compaction."""
    compaction_threshold: float = 0.0
    """Share of the context limit at which older messages are replaced by a summary."""
    compaction_cooldown: int = 2
    """Iterations between two compactions."""
    guidance: int = 0
    """Failed calls (and as many successful ones) that the model is reminded of."""
    wrap_up_turns: int = 0
    """1 keeps one last turn, without tools, for an answer when a limit is reached."""
    wrap_up_share: float = 0.1
    """Share of token, cost and time limits kept back for that turn."""
    approval_seconds: float = 604_800.0
    """How long a person may take to decide on a call; after that it is answered as rejected. Default: a week."""
    memory_seconds: float = 30.0
    """How long each call of the memory port may take."""
    cancel_seconds: float = field(default=GRACE, metadata={"fingerprint": None})
    """How long a tool, model, memory or hook may take to end once it is cancelled; after that it is abandoned, and the
    run continues or ends without it. 0 waits for it."""

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
    """Say which of those that are several numbers are none."""
    caps: object = limits.tool_caps
    if not isinstance(caps, Mapping):
        yield f"tool_caps is {caps!r}; it must be {{tool: calls}}"
    if not _is_shares(limits.context_warnings):
        yield f"context_warnings is {limits.context_warnings!r}; it must be shares, as (0.7, 0.85)"
    if fault := unknown_word("on_unknown_cost", limits.on_unknown_cost, ON_UNKNOWN_COST):
        yield fault


def _faults(limits: Limits) -> Iterator[str]:
    """Say what is out of range."""
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
"""Numeric limit -> whether it counts something, and so is a whole number."""

OFF = Limits(
    max_iterations=0,
    max_tool_errors=0,
    max_repeated_success=0,
    max_no_progress=0,
    max_concurrent_tools=0,
    completion_retries=0,
)
"""No limit at all: for replaying recorded conversations."""
