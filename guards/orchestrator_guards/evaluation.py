"""Evaluations of guards as a journal keeps them: the verdict and the raw inputs, from which it follows again.

A turn evaluates several guards, so a row is a short list of plain values:

- `[ok, guard, observed, limit]` if the function has the name of the guard and its inputs are (observed, limit);
- `[ok, guard, observed, limit, function, *inputs]` for every other one, inputs in the order of its parameters;
- `[ok, guard, observed, limit, guard, {parameter: input}, action]` for a guardrail of an agent.

Inputs are numbers, closed words and digests. A tool is the digest of its key. The window of `progress` is its
fingerprints, or the name of the field of the context that has them in the same journal; the reader replaces the name.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, Final, NamedTuple

from orchestrator_guards import budget, condition
from orchestrator_guards.money import MICRO_UNITS
from orchestrator_guards.progress import TurnFingerprint, digest, progress
from orchestrator_guards.verdict import Verdict

GUARDS: Final = "guards"
"""Member of a record that has the rows of the guards that led to it."""
Guard = Callable[..., Verdict]
Row = tuple[Any, ...]
"""A row as it is written: JSON types only."""


def _guards_of(module: ModuleType) -> dict[str, Guard]:
    """Return the guards that a module defines: its public functions that return a Verdict."""
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and function.__annotations__.get("return") == "Verdict"
        and not name.startswith("_")
    }


FUNCTIONS: Final[Mapping[str, Guard]] = MappingProxyType(
    _guards_of(budget) | _guards_of(condition) | _guards_of(sys.modules[progress.__module__])
)
"""Name of a guard function -> the function."""


class GuardrailRow(NamedTuple):
    """The inputs of a guardrail by name, and the action of its refusal."""

    inputs: Mapping[str, Any]
    action: str


class GuardEvaluation(NamedTuple):
    """One evaluation of a guard, as recorded."""

    verdict: Verdict
    """Without its detail, which can name a tool."""
    function: str
    """Name of the guard function; of the predicate, for a guard that is not in this package."""
    inputs: tuple[Any, ...]
    """In the order of the parameters."""

    @property
    def named(self) -> dict[str, Any]:
        """Return the inputs by parameter name; (observed, limit) for an unknown function."""
        if (guardrail := self.guardrail) is not None:
            return dict(guardrail.inputs)
        return dict(zip(_parameters(self.function), self.inputs, strict=False))

    @property
    def guardrail(self) -> GuardrailRow | None:
        """What the row of a guardrail has beside its verdict; None for another guard."""
        inputs = self.inputs
        if len(inputs) == _OF_GUARDRAIL and isinstance(inputs[0], Mapping):
            return GuardrailRow(inputs[0], str(inputs[1]))
        return None

    def is_known(self, functions: Mapping[str, Guard] = FUNCTIONS) -> bool:
        """Return whether the guard can be evaluated again."""
        return self.function in functions

    def holds(self, functions: Mapping[str, Guard] = FUNCTIONS) -> bool:
        """Return whether the guard gives the recorded verdict for the recorded inputs. Raises as `evaluate`."""
        return evaluate(self.function, self.inputs, functions)[:4] == self.verdict[:4]


def evaluate(
    function: str, inputs: Sequence[Any] | Mapping[str, Any], functions: Mapping[str, Guard] = FUNCTIONS
) -> Verdict:
    """Evaluate a guard on recorded inputs, in the order of its parameters or by name. Pure.

    Raises:
        ValueError: The guard is not in `functions`, or its inputs do not fit.

    Example:
        >>> evaluate("iterations", (20, 20)).ok, evaluate("iterations", {"observed": 19, "limit": 20}).ok
        (False, True)
    """
    guard = functions.get(function)
    if guard is None:
        raise ValueError(f"guard {function!r} is unknown; known: {', '.join(sorted(functions))}")
    named = (
        dict(inputs)
        if isinstance(inputs, Mapping)
        else dict(zip(_parameters(function), inputs, strict=False))
    )
    if "window" in named:
        named["window"] = _window(named["window"])
    try:
        return guard(**named)
    except TypeError as error:
        raise ValueError(f"the inputs of guard {function!r} do not fit: {error}") from None


def read_row(row: Sequence[Any]) -> GuardEvaluation:
    """Return the evaluation in a row. Raises ValueError for a row of another form."""
    if len(row) == _STANDARD - 1 or len(row) < _SHORTEST or not isinstance(row[1], str):
        raise ValueError(f"a row of an evaluation starts with ok, guard, observed and limit, not {row!r:.80}")
    ok, guard, *numbers = row[:_STANDARD]
    verdict = Verdict(bool(ok), guard, *numbers)
    if len(row) > _STANDARD:
        return GuardEvaluation(verdict, str(row[_STANDARD]), tuple(row[_STANDARD + 1 :]))
    return GuardEvaluation(verdict, guard, tuple(numbers))


def row_of(verdict: Verdict) -> Row:
    """Return the row of a verdict of this package whose inputs follow from it; `given` returns that of the others."""
    made = _ROWS.get(verdict.guard)
    return verdict[:4] if made is None else made(verdict)


def given(verdict: Verdict, function: Guard, *inputs: Any) -> Row:
    """Return the row of a verdict with the inputs from which it was made."""
    return *verdict[:4], function.__name__, *inputs


def foreign_row(name: str, answer: object) -> Row:
    """Return the row of the answer of a guard that is not of this package: a Verdict, or any value as true or false.

    Numbers that JSON cannot represent are left out.
    """
    if not isinstance(answer, Verdict):
        return bool(answer), name
    numbers = (answer.observed, answer.limit)
    return (
        (bool(answer.ok), str(answer.guard), *numbers)
        if all(map(is_storable, numbers))
        else (bool(answer.ok), name)
    )


def is_storable(number: object) -> bool:
    """Return whether a value is a number that JSON and every journal can hold."""
    return isinstance(number, int | float) and math.isfinite(number) and abs(number) < _LARGEST


def _of_tool(verdict: Verdict) -> Row:
    ok, guard, observed, limit, tool = verdict
    return ok, guard, observed, limit, guard, digest(budget.tool_key(tool)), observed, limit


def _of_cost(verdict: Verdict) -> Row:
    ok, guard, observed, limit, _ = verdict
    micros = (round(amount * MICRO_UNITS) for amount in (observed, limit))
    return ok, guard, observed, limit, guard, *micros


_ROWS: Final[Mapping[str, Callable[[Verdict], Row]]] = {
    "cost": _of_cost,
    "tool_cap": _of_tool,
    "tool_errors": _of_tool,
}
"""Guards whose inputs differ from the numbers of the verdict and follow from it."""
_GIVEN: Final = ("affordable", "progress", "repeated_success", "request_cost")
"""Functions whose inputs only their caller knows."""
STANDARD: Final = frozenset(FUNCTIONS).difference(_ROWS, _GIVEN)
"""Guards whose inputs are (observed, limit): their row is `verdict[:4]`."""
_SHORTEST, _STANDARD, _OF_GUARDRAIL = 2, 4, 2
_LARGEST = 2**63


@functools.cache
def _parameters(function: str) -> tuple[str, ...]:
    known = FUNCTIONS.get(function)
    return ("observed", "limit") if known is None else tuple(inspect.signature(known).parameters)


def _window(turns: Sequence[Any]) -> list[TurnFingerprint]:
    """Return a window as the guard takes it, from its JSON form."""
    return [
        TurnFingerprint(
            tuple(calls), tuple(results), failed, text, frozenset(tools), tuple(errors), advances, waits
        )
        for calls, results, failed, text, tools, errors, advances, waits in turns
    ]
