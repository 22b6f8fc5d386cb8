"""The budget of a run, shared with its queries and child runs.

Each run of a tree has a budget, and usage below counts in every budget above. A request is sent when its estimate
fits into all of them, minus all reservations in flight. Otherwise it waits until some of them are settled. With
nothing in flight the request is sent while anything is left. Therefore a limit is exceeded by no more than one
request, however many are made at once. A cost limit is not exceeded at all if the maximum cost of a request is known:
a request that does not fit alone is refused.

Before a request is sent, the usage with an estimate for every answer in flight is recorded (`announce`), so that a
crash does not lose it. (`llm_loop` shares budgets in the same way in its own `budget_account.py`, bound to its runs
and their journal.)
"""

# ruff: noqa: SLF001 - budgets of one tree access each other

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from orchestrator.errors import LimitReached
from orchestrator.llm.message import NO_USAGE, Message, Usage
from orchestrator.machines.rlm.limits import RlmLimits
from orchestrator_callbacks.llm_loop.request_usage import requires_price
from orchestrator_guards import (
    Verdict,
    cost,
    first_refusal,
    input_tokens,
    output_tokens,
    request_cost,
    sub_calls,
)

_CHARS_A_TOKEN = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    """A request in flight: its reservation, and the charge if its answer is lost."""

    need: Usage
    """Its probable usage; the cost is the maximum cost, None if unknown."""
    charge: Usage


@dataclass(slots=True)
class RequestUsage:
    """The usage of one request, set by its caller."""

    usage: Usage = NO_USAGE


class RunBudget:
    """The budget of one run; `lender` is the budget of its parent run."""

    def __init__(
        self, limits: RlmLimits, *, lender: RunBudget | None = None, usage: Usage = NO_USAGE, calls: int = 0
    ) -> None:
        self._limits = limits
        self._lender = lender
        self._flying: list[_Flight] = []
        self._settled: asyncio.Event = asyncio.Event() if lender is None else lender._settled
        self.usage = usage
        """Usage of the run and all its child runs."""
        self.calls = calls
        """Queries below the run."""
        self.unpriced: Verdict | None = None
        """Why the cost is unknown: an answer, here or below, had no price."""
        self.announce: Callable[[], Awaitable[None]] | None = None
        """Set on the outermost budget: records `committed` before each request here or below is sent."""

    @property
    def committed(self) -> Usage:
        """The usage if the answers to all requests in flight are lost."""
        return sum((flight.charge for flight in self._flying), self.usage)

    def add(self, usage: Usage) -> None:
        """Count usage here and in every budget above."""
        for purse in self._all():
            purse.usage = purse.usage + usage
        self._wake()

    def refuse(self, verdict: Verdict) -> None:
        """Block further requests, here and above, if a limit bounds the cost: the cost of an answer is unknown.

        Raises LimitReached if there is such a limit.
        """
        bound = [purse for purse in self._all() if requires_price(purse._limits)]
        for purse in bound:
            purse.unpriced = verdict
        if bound:
            raise LimitReached(verdict)

    def refusal(self, need: Usage = NO_USAGE) -> Verdict | None:
        """Return the refusal of a request by a limit, here or above, that is used up or below its cost; else None."""
        return first_refusal(verdict for purse in self._all() for verdict in purse._verdicts(need))

    def count_call(self) -> None:
        """Count one query. Raises LimitReached, without counting it, if no query is left here or above."""
        for purse in self._all():
            verdict = sub_calls(purse.calls, purse._limits.max_sub_calls)
            if not verdict:
                raise LimitReached(verdict)
        for purse in self._all():
            purse.calls += 1

    @contextlib.asynccontextmanager
    async def request(self, need: Usage, charge: Usage | None = None) -> AsyncIterator[RequestUsage]:
        """Wait until a request of about `need` fits, and count its usage afterwards.

        Args:
            need: Estimated usage. Its cost is the maximum cost; a request of unknown cost is sent alone.
            charge: Estimate that is counted for an interrupted request; `need` by default.

        Raises:
            LimitReached: A limit is used up or cannot cover the request.
            Exception: Any error of `announce`.
        """
        flight = _Flight(need, need.as_estimate() if charge is None else charge)
        await self._reserve(flight)
        bill = RequestUsage()
        try:
            *_, outermost = self._all()
            if outermost.announce is not None:
                await outermost.announce()
            try:
                yield bill
            except asyncio.CancelledError:
                bill.usage = flight.charge
                raise
        finally:
            for purse in self._all():
                purse._flying.remove(flight)
            self.add(bill.usage)

    # ---- private ----

    def _all(self) -> Iterator[RunBudget]:
        purse: RunBudget | None = self
        while purse is not None:
            yield purse
            purse = purse._lender

    def _verdicts(self, need: Usage) -> Iterator[Verdict]:
        used, limits = self.usage, self._limits
        if self.unpriced is not None:
            yield self.unpriced
        yield input_tokens(used.input_tokens, limits.max_input_tokens)
        yield output_tokens(used.output_tokens, limits.max_output_tokens)
        spent, most = used.cost_micros or 0, limits.max_cost_micros
        yield cost(spent, most)
        yield request_cost(spent, need.cost_micros or 0, most)

    async def _reserve(self, flight: _Flight) -> None:
        while True:
            refusal = self.refusal(flight.need)
            if refusal is not None:
                raise LimitReached(refusal)
            if all(not purse._flying or purse._fits(flight.need) for purse in self._all()):
                for purse in self._all():
                    purse._flying.append(flight)
                return
            self._settled.clear()
            await self._settled.wait()

    def _fits(self, need: Usage) -> bool:
        """Return whether a request fits beside those in flight. Requests of unknown cost are sent one at a time."""
        flying = [flight.need for flight in self._flying]
        used = sum(flying, self.usage + need)
        limits = self._limits
        unknown = any(one.cost_micros is None for one in (need, *flying))
        spent = math.inf if unknown else used.cost_micros or 0
        pairs = (
            (used.input_tokens, limits.max_input_tokens),
            (used.output_tokens, limits.max_output_tokens),
            (spent, limits.max_cost_micros),
        )
        return all(not limit or value <= limit for value, limit in pairs)

    def _wake(self) -> None:
        """Wake waiting requests, so that they check again."""
        self._settled.set()


def estimated(messages: Iterable[Message]) -> Usage:
    """Return the estimated usage of a request at four characters per token. The length of the answer is unknown."""
    chars = sum(len(message.text) for message in messages)
    return Usage(math.ceil(chars / _CHARS_A_TOKEN), 0)
