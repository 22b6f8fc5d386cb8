"""Limits of code mode and tools mode. 0 disables a limit; there are no on/off switches."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from orchestrator.errors import ConfigError
from orchestrator.machines.bound import ON_UNKNOWN_COST, by_name, out_of_range, unknown_word
from orchestrator_guards.money import limit_micros


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class RlmLimits:
    """Limits of one run. A limit of N allows exactly N; 0 means unlimited.

    The defaults are for code mode; TOOLS_LIMITS are for tools mode.

    Raises:
        ConfigError: A name is unknown, or a number is below 0.
    """

    max_iterations: int = 30
    """Turns. After the last one the model gets one more request for its answer, which does not count as a turn."""
    max_depth: int = 1
    """At this depth a run calls the model once and returns its answer. The outermost run has depth 0."""
    max_sub_calls: int = 1_000
    """Model queries of the code or of tools, over the whole run and its child runs.

    Limited by default: a block's clock stops while a model answers, so `while True: llm_query(...)` would cause
    requests and cost for days.
    """
    max_concurrent_subcalls: int = 4
    """Concurrent queries of one batch."""
    max_concurrent_tools: int = 10
    """Concurrent tools of one turn."""
    max_input_tokens: int = 0
    """Input tokens of the run and its child runs. Output tokens and cost work alike."""
    max_output_tokens: int = 0
    max_cost: float = 0.0
    on_unknown_cost: Literal["stop", "ignore"] = field(default="stop", metadata={"fingerprint": None})
    """Handling of an answer of unknown cost under `max_cost`: `stop` or `ignore`, as in `Limits`."""
    max_seconds: float = 0.0
    """Wall time of the run; work in flight is interrupted."""
    code_seconds: float = 300.0
    """Wall time of one block of code, without the time that it waits for answers. 0 uses the limit of the REPL."""
    result_chars: int = 20_000
    """Characters of one result in the history."""
    history_tokens: int = 0
    """Size of the model's history above which the compressor is called, at four characters per token. 0: it is never
    called."""

    @property
    def max_cost_micros(self) -> int:
        """`max_cost` in millionths of the currency."""
        return limit_micros(self.max_cost)

    def __post_init__(self) -> None:
        if fault := unknown_word("on_unknown_cost", self.on_unknown_cost, ON_UNKNOWN_COST):
            raise ConfigError(f"limit {fault}")
        for item in fields(self):
            if isinstance(item.default, str):
                continue
            whole = isinstance(item.default, int)
            if fault := out_of_range(item.name, getattr(self, item.name), whole=whole):
                raise ConfigError(f"limit {fault}")


CODE_LIMITS = RlmLimits()
TOOLS_LIMITS = RlmLimits(max_iterations=10)
