"""A policy to test: other limits, put over those of each run, and guards of the host; the range of a sweep."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from types import MappingProxyType
from typing import Any, Final

from orchestrator.errors import ConfigError
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.runtime.backtest.trace import limits_of, named
from orchestrator.runtime.llm_loop.composition import STAGES, guardrails
from orchestrator_guards import Verdict

HostGuard = Callable[..., Any]
"""A pure function whose parameters are some of the INPUTS. It returns a Verdict, or a false value to refuse a turn."""

INPUTS: Final[Mapping[str, Callable[[LoopContext], Any]]] = MappingProxyType(
    {
        "iteration": lambda ctx: ctx.iteration,
        "input_tokens": lambda ctx: ctx.spent.total.input_tokens,
        "output_tokens": lambda ctx: ctx.spent.total.output_tokens,
        "cost": lambda ctx: ctx.spent.total.cost_max or 0.0,
        "seconds": lambda ctx: ctx.spent.seconds,
        "tool_calls": lambda ctx: ctx.spent.tool_calls,
        "calls_by_tool": lambda ctx: MappingProxyType(ctx.spent.by_tool),
        "error_streaks": lambda ctx: MappingProxyType(ctx.progress.error_streaks),
        "retries": lambda ctx: ctx.spent.retries,
        "restarts": lambda ctx: ctx.spent.restarts,
        "window": lambda ctx: ctx.turns,
    }
)
"""Input of a guard -> its value at a decision about another turn. A guard cannot change any of them."""

IGNORED: Final = frozenset(
    ("approval_seconds", "memory_seconds", "cancel_seconds", "max_concurrent_tools", "context_warnings")
)
"""Limits that change waiting times and log lines only, so no decision of a guard and no message depends on them."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits and guards for a backtest.

    Args:
        limits: Members of `Limits` that replace those of each run; the others stay as recorded. 0 is off.
        guards: Guards of the host, evaluated at each decision about another turn, after the shipped ones. Each is a
            pure function whose parameters are some of `INPUTS`.
        input_guards, output_guards: Guardrails in place of those of the runs, evaluated on the inputs that the records
            have under the same names. None keeps the recorded verdicts, and an empty list has no guardrails.

    Raises:
        ConfigError: A limit is unknown or invalid, or a parameter of a guard is not one of `INPUTS`.

    Example:
        Policy({"max_iterations": 30, "max_no_progress": 2})
    """

    limits: Mapping[str, Any] = field(default_factory=dict)
    guards: Sequence[Any] = ()
    input_guards: Sequence[Any] | None = None
    output_guards: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        checked = Limits(**self.limits)
        if "completion_retries" in self.limits and not checked.completion_retries:
            raise ConfigError(
                "completion_retries=0 also changes which answers are usable, which a backtest cannot know: "
                "give 1 or more"
            )
        object.__setattr__(
            self, "limits", MappingProxyType({name: getattr(checked, name) for name in self.limits})
        )
        object.__setattr__(self, "guards", tuple(HostGuardCall.of(guard) for guard in self.guards))
        stages = {stage: getattr(self, stage) for stage in STAGES}
        for stage, checks in guardrails(**{k: v for k, v in stages.items() if v is not None}).items():
            object.__setattr__(self, stage, checks)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The limits that no decision depends on."""
        return tuple(sorted(IGNORED & self.limits.keys()))

    def over(self, recorded: Mapping[str, Any], *, digests: bool = False) -> Limits:
        """Return the limits of a run under this policy. With `digests` its tools are named by digests."""
        given = dict(self.limits)
        if digests and "tool_caps" in given:
            given["tool_caps"] = {named(tool): cap for tool, cap in given["tool_caps"].items()}
        return limits_of({**recorded, **given})

    def check_guards(self) -> None:
        """Check that the guards are pure functions, after their use. Raises ConfigError."""
        for guard in self.guards:
            guard.ask_again()


RECORDED: Final = Policy()
"""The policy that each run was recorded with."""


@dataclass(frozen=True, slots=True)
class HostGuardCall:
    """A guard of the host, with the inputs that it takes."""

    guard: HostGuard
    name: str
    inputs: tuple[str, ...]
    asked: list[tuple[Mapping[str, Any], Any]] = field(default_factory=list, compare=False)
    """The first inputs with their answers, for `ask_again`."""

    @classmethod
    def of(cls, guard: object) -> HostGuardCall:
        """Check a guard. Raises ConfigError."""
        if isinstance(guard, HostGuardCall):
            return guard
        if not callable(guard):
            raise ConfigError(f"a guard must be a function, not {type(guard).__name__}")
        name = getattr(guard, "__name__", type(guard).__name__)
        try:
            inputs = tuple(inspect.signature(guard).parameters)
        except (TypeError, ValueError):
            raise ConfigError(
                f"the parameters of guard {name} cannot be read: give a Python function"
            ) from None
        if unknown := [one for one in inputs if one not in INPUTS]:
            raise ConfigError(
                f"guard {name} has a parameter {unknown[0]!r}; a guard of a backtest takes some of: {', '.join(INPUTS)}"
            )
        return cls(guard, name, inputs)

    def evaluate(self, ctx: LoopContext) -> Verdict:
        """Return the verdict of the guard. Raises ConfigError for a guard that raises or is not pure."""
        given = {name: INPUTS[name](ctx) for name in self.inputs}
        first = self._answer(given)
        if len(self.asked) < _PROBES:
            self.asked.append((given, first))
        if isinstance(first, Verdict):
            return first
        if not isinstance(first, bool):
            raise ConfigError(
                f"guard {self.name} returned {type(first).__name__}; it must return a Verdict or a bool"
            )
        return Verdict(first, self.name)

    def ask_again(self) -> None:
        """Evaluate the guard again on its first inputs. Raises ConfigError if an answer is another one."""
        for given, first in islice(cycle(self.asked), _PROBES):
            if self._answer(given) != first:
                raise ConfigError(
                    f"guard {self.name} gave two answers to the same inputs; a guard must be a pure function"
                )

    def _answer(self, given: Mapping[str, Any]) -> Any:
        try:
            return self.guard(**given)
        except Exception as error:
            raise ConfigError(
                f"guard {self.name} raised {type(error).__name__}: {error}; a guard only reads its inputs and returns "
                "a Verdict or a bool"
            ) from error


_PROBES: Final = 50
"""Evaluations that are repeated at the end of a backtest."""


_FORM: Final = re.compile(r"(\w+)=(\d{1,18})\.\.(\d{1,18})")
_MOST_VALUES: Final = 100


@dataclass(frozen=True, slots=True)
class SweepRange:
    """A limit, and the whole numbers that a sweep gives it."""

    limit: str
    values: range

    @classmethod
    def of(cls, text: str) -> SweepRange:
        """Read a range. Raises ConfigError.

        Example:
            >>> SweepRange.of("max_no_progress=2..8").values
            range(2, 9)
        """
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ConfigError(
                f"sweep {text!r:.80} is not of the form NAME=A..B with whole numbers, as max_no_progress=2..8"
            )
        first, last = int(found[2]), int(found[3])
        if not first <= last < first + _MOST_VALUES:
            raise ConfigError(
                f"sweep {text!r:.80} must go up, over at most {_MOST_VALUES} values, as max_no_progress=2..8"
            )
        return cls(found[1], range(first, last + 1))

    def policies(self, policy: Policy) -> dict[str, Policy]:
        """Return value -> the policy with this value of the limit. Raises ConfigError."""
        limits = policy.limits
        return {str(value): replace(policy, limits={**limits, self.limit: value}) for value in self.values}
