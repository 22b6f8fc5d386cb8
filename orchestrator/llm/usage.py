"""Tokens and cost of answers: as an adapter reports them, summed over a run, and as stored in records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, fields, replace
from typing import Any, TypeGuard

from orchestrator.kernel.value import value
from orchestrator_guards.money import cost_micros as micros_of
from orchestrator_guards.money import in_currency


def _in_fingerprints(known: tuple[str, str] | None) -> dict[str, Any]:
    """Return metadata of a stored field: its name and type in graph fingerprints, None to leave it out of them.

    `Usage.of` also reads records from before the field existed, so their runs can be resumed.
    """
    return {"fingerprint": known}


@value(frozen=True, slots=False, init=False)
class Usage:  # noqa: PLW1641 - the decorator makes the hash
    """Tokens and cost of one answer, or of several. Cached and reasoning tokens are subsets of input and output.

    `cache_write_tokens` is the part of the input that the provider wrote into its cache, which some bill at a price of
    its own.

    Cost is counted in integers (`cost_micros`, millionths of the currency), so that sums are exact. `cost` is the
    same amount in the currency of the price table, for adapters and readers. The `estimated_` numbers are the
    estimated part of the others: for answers without usage, and for those that were lost in a crash or cut off.

    A request that was cancelled or timed out, or whose answer broke off, has a range. `output_tokens` and
    `cost_max_micros` have its maximum, which limits count for good; `cost_micros` is its minimum, the cost of what
    arrived, for reports to people.

    Instances have a dict: a journal encodes it three times a turn, at a third of the cost of slots.

    Example:
        >>> (Usage(120, 30, cost=0.25) + Usage(80, 20)).input_tokens
        200
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cost_micros: int | None = field(default=None, metadata=_in_fingerprints(("cost", "float | None")))
    """In millionths of the currency of the price table; None if no price is known."""
    estimated_input_tokens: int = field(default=0, metadata=_in_fingerprints(None))
    estimated_output_tokens: int = field(default=0, metadata=_in_fingerprints(None))
    estimated_cost_micros: int = field(default=0, metadata=_in_fingerprints(None))
    cache_write_tokens: int = field(default=0, metadata=_in_fingerprints(None))
    cost_max_micros: int | None = field(default=None, metadata=_in_fingerprints(None))
    """The largest possible cost, if an interrupted request makes it larger than `cost_micros`; else None."""

    def __init__(
        self,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_input_tokens: int = 0,
        reasoning_tokens: int = 0,
        cost: float | None = None,
        *,
        cost_micros: int | None = None,
        estimated_input_tokens: int = 0,
        estimated_output_tokens: int = 0,
        estimated_cost_micros: int = 0,
        cache_write_tokens: int = 0,
        cost_max_micros: int | None = None,
    ) -> None:
        """Set the numbers of an answer. Pass `cost` (in the currency, rounded up to a millionth) or `cost_micros`.

        A cost that is not an amount is kept unchanged: the answer that has it is then refused as malformed.
        """
        if cost is not None:
            cost_micros = micros_of(cost) if is_amount(cost) else cost  # type: ignore[assignment]
        self.input_tokens = input_tokens  # type: ignore[misc]
        self.output_tokens = output_tokens  # type: ignore[misc]
        self.cached_input_tokens = cached_input_tokens  # type: ignore[misc]
        self.reasoning_tokens = reasoning_tokens  # type: ignore[misc]
        self.cost_micros = cost_micros  # type: ignore[misc]
        self.estimated_input_tokens = estimated_input_tokens  # type: ignore[misc]
        self.estimated_output_tokens = estimated_output_tokens  # type: ignore[misc]
        self.estimated_cost_micros = estimated_cost_micros  # type: ignore[misc]
        self.cache_write_tokens = cache_write_tokens  # type: ignore[misc]
        self.cost_max_micros = cost_max_micros  # type: ignore[misc]

    @property
    def cost(self) -> float | None:
        """In the currency of the price table; None if no price is known."""
        return None if self.cost_micros is None else in_currency(self.cost_micros)

    @property
    def cost_for_limits(self) -> int:
        """The largest possible cost in millionths, which limits count; 0 if no price is known."""
        return (self.cost_micros or 0) if self.cost_max_micros is None else self.cost_max_micros

    @property
    def cost_max(self) -> float | None:
        """The largest possible cost, in the currency of the price table; None if no price is known."""
        return self.cost if self.cost_max_micros is None else in_currency(self.cost_max_micros)

    @property
    def estimated_cost(self) -> float:
        """The estimated part of `cost`, in the currency of the price table."""
        return in_currency(self.estimated_cost_micros)

    def __eq__(self, other: object) -> bool:
        # Not by `__dict__`: Python reads the attributes of an instance whose dict exists three times as slowly.
        return (
            (
                self.input_tokens == other.input_tokens
                and self.output_tokens == other.output_tokens
                and self.cached_input_tokens == other.cached_input_tokens
                and self.reasoning_tokens == other.reasoning_tokens
                and self.cost_micros == other.cost_micros
                and self.estimated_input_tokens == other.estimated_input_tokens
                and self.estimated_output_tokens == other.estimated_output_tokens
                and self.estimated_cost_micros == other.estimated_cost_micros
                and self.cache_write_tokens == other.cache_write_tokens
                and self.cost_max_micros == other.cost_max_micros
            )
            if isinstance(other, Usage)
            else NotImplemented
        )

    def __add__(self, other: Usage) -> Usage:
        # Once a turn: `combined` takes three times as long.
        own, others = self.cost_micros, other.cost_micros
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            cost_micros=None if own is None and others is None else (own or 0) + (others or 0),
            estimated_input_tokens=self.estimated_input_tokens + other.estimated_input_tokens,
            estimated_output_tokens=self.estimated_output_tokens + other.estimated_output_tokens,
            estimated_cost_micros=self.estimated_cost_micros + other.estimated_cost_micros,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cost_max_micros=None
            if self.cost_max_micros is None and other.cost_max_micros is None
            else self.cost_for_limits + other.cost_for_limits,
        )

    def combined(self, other: Usage, by: Callable[[int, int], int]) -> Usage:
        """Return the usage whose numbers are `by` of both; an unknown cost counts as 0 if the other is known."""
        known = (self.cost_micros, other.cost_micros)
        return Usage(
            by(self.input_tokens, other.input_tokens),
            by(self.output_tokens, other.output_tokens),
            by(self.cached_input_tokens, other.cached_input_tokens),
            by(self.reasoning_tokens, other.reasoning_tokens),
            cost_micros=None if known == (None, None) else by(known[0] or 0, known[1] or 0),
            estimated_input_tokens=by(self.estimated_input_tokens, other.estimated_input_tokens),
            estimated_output_tokens=by(self.estimated_output_tokens, other.estimated_output_tokens),
            estimated_cost_micros=by(self.estimated_cost_micros, other.estimated_cost_micros),
            cache_write_tokens=by(self.cache_write_tokens, other.cache_write_tokens),
            cost_max_micros=None
            if (self.cost_max_micros, other.cost_max_micros) == (None, None)
            else by(self.cost_for_limits, other.cost_for_limits),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as plain data for people and programs: costs are in the currency."""
        plain = asdict(self)
        del plain["cost_micros"], plain["estimated_cost_micros"], plain["cost_max_micros"]
        return {
            **plain,
            "cost": self.cost,
            "cost_max": self.cost_max,
            "estimated_cost": self.estimated_cost,
        }

    def short(self) -> dict[str, int]:
        """Return the numbers for a record, without subsets that are 0 and an unknown cost; `of` reads it."""
        numbers = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        if self.cached_input_tokens:
            numbers["cached_input_tokens"] = self.cached_input_tokens
        if self.reasoning_tokens:
            numbers["reasoning_tokens"] = self.reasoning_tokens
        if self.cache_write_tokens:
            numbers["cache_write_tokens"] = self.cache_write_tokens
        if self.cost_micros is not None:
            numbers["cost_micros"] = self.cost_micros
        if self.cost_max_micros is not None:
            numbers["cost_max_micros"] = self.cost_max_micros
        if self.estimated_input_tokens or self.estimated_output_tokens or self.estimated_cost_micros:
            numbers["estimated_input_tokens"] = self.estimated_input_tokens
            numbers["estimated_output_tokens"] = self.estimated_output_tokens
            numbers["estimated_cost_micros"] = self.estimated_cost_micros
        return numbers

    def as_estimate(self) -> Usage:
        """Return the same usage with all numbers marked as an estimate."""
        return replace(
            self,
            estimated_input_tokens=self.input_tokens,
            estimated_output_tokens=self.output_tokens,
            estimated_cost_micros=self.cost_micros or 0,
        )

    @classmethod
    def of(cls, stored: object) -> Usage:
        """Read a usage from a record; earlier versions wrote a `cost` in the currency. Raises ValueError."""
        if isinstance(stored, Usage):
            return stored
        if not isinstance(stored, Mapping):
            raise ValueError(f"a usage is an object, not {type(stored).__name__}")  # noqa: TRY004 - the record is invalid
        known = {name: stored[name] for name in _NUMBERS if stored.get(name) is not None}
        for name, count in known.items():
            if not isinstance(count, int) or isinstance(count, bool):
                raise ValueError(f"{name} is {count!r:.40}, not a whole number")  # noqa: TRY004
        cost = stored.get("cost")
        if cost is not None and not is_amount(cost):
            raise ValueError(f"cost is {cost!r:.40}, not an amount")
        return cls(cost=None if "cost_micros" in known else cost, **known)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:
        """Return the schema with which a stored context is read through `of`."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(cls.of)


def is_amount(cost: object) -> TypeGuard[int | float]:
    """Return whether the value is an amount of money: a finite number, 0 or more."""
    return isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < math.inf


def approximate_tokens(characters: int) -> int:
    """Return the approximate number of tokens of a text, given its length in characters.

    Example:
        >>> approximate_tokens(0), approximate_tokens(4), approximate_tokens(5)
        (0, 1, 2)
    """
    return -(-characters // CHARACTERS_PER_TOKEN)


CHARACTERS_PER_TOKEN = 4
"""Approximate; no tokenizer is right for every model."""
NO_USAGE = Usage()
_NUMBERS = tuple(item.name for item in fields(Usage))
"""Names of the stored numbers. A record is read for each turn, and `fields` makes a new tuple at each call."""
