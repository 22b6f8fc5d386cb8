"""Limits of code mode and tools mode. Numbers where 0 disables; there are no on/off switches beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from orchestrator.errors import ConfigError
from orchestrator.machines.bound import ON_UNKNOWN_COST, by_name, out_of_range, unknown_word
from orchestrator_guards.money import limit_micros


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class RlmLimits:
    """What one run may use. A limit of N allows exactly N; 0 is unlimited. Raises ConfigError.

    Defaults are seed 004's, for code mode, where it has one; TOOLS_LIMITS are those of tools mode.
    """

    max_iterations: int = 30
    """Turns. At the last one the model is asked once more, for its answer: that request is none of them (L8)."""
    max_depth: int = 1
    """A run at this depth asks the model once and returns its answer; the outermost run has depth 0."""
    max_sub_calls: int = 1_000
    """Questions of the code (or of tools) to a model, over the whole run and all below it.

    Not off by default: a block's clock stands still while a model answers, so that `while True: llm_query(...)` would
    ask, and pay, for days.
    """
    max_concurrent_subcalls: int = 4
    """Of one batch that are under way at once."""
    max_concurrent_tools: int = 10
    """Tools of one turn that run at once."""
    max_input_tokens: int = 0
    """Of the run and all that it asked below it; output tokens and cost likewise."""
    max_output_tokens: int = 0
    max_cost: float = 0.0
    on_unknown_cost: Literal["stop", "ignore"] = field(default="stop", metadata={"fingerprint": None})
    """What `max_cost` does where the cost of an answer is unknown: `stop` or `ignore`, as in `Limits`."""
    max_seconds: float = 0.0
    """Wall time of the run; what is in flight is interrupted."""
    code_seconds: float = 300.0
    """Wall time of one block of code, without what it waits for answers; 0: what the REPL allows by itself."""
    result_chars: int = 20_000
    """Characters of one result that go into the history."""
    history_tokens: int = 0
    """How much the model may be shown before the compressor is asked, by an estimate of four characters a token; 0: it
    is never asked."""

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
