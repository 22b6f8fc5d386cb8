"""What a run may spend, and lends to the questions and the runs below it.

Each run of a tree has a purse. What is spent below counts in every purse above; a request goes out when it fits, by an
estimate, into all of them once everything in flight has cost what was reserved for it. Where it does not fit it waits
for some of that to be settled; with nothing in flight it goes out while anything is left. So a limit is exceeded by no
more than one request, however many are asked at once; a limit on cost is not exceeded at all where the most that a
request can cost is known: one that does not fit by itself is refused. Before a request goes out, the usage with an
estimate for every answer in flight is recorded (`announce`), so that a crash does not lose it.
`llm_loop.reservation` decides when a request is sent.
"""

# ruff: noqa: SLF001 - purses of one tree look into each other

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.errors import LimitReached
from orchestrator.llm.message import NO_USAGE, Message, Usage
from orchestrator.machines.rlm.limits import RlmLimits
from orchestrator_callbacks.llm_loop.request_usage import requires_price
from orchestrator_callbacks.llm_loop.reservation import PayingAccount, ReservationQueue
from orchestrator_guards import (
    Verdict,
    sub_calls,
)

_CHARS_A_TOKEN = 4


@dataclass(slots=True)
class RequestUsage:
    """What one request used; whoever makes it puts it in."""

    usage: Usage = NO_USAGE


class RunBudget(PayingAccount):
    """One run's budget; `lender` is the purse of the run above it."""

    def __init__(
        self, limits: RlmLimits, *, lender: RunBudget | None = None, usage: Usage = NO_USAGE, calls: int = 0
    ) -> None:
        self._limits = limits
        self._lender = lender
        self.flying: list[Usage] = []
        self._charges: list[Usage] = []
        """What is charged for the requests in flight if their answers are lost."""
        self._queue: ReservationQueue = ReservationQueue() if lender is None else lender._queue
        self.usage = usage
        """Of the run and all below it."""
        self.calls = calls
        """Questions that were asked below it."""
        self.unpriced: Verdict | None = None
        """Why the cost is not known any more: an answer, here or below, had no price."""
        self.announce: Callable[[], Awaitable[None]] | None = None
        """Of the outermost one: makes `committed` known, before each request here or below goes out."""

    @property
    def committed(self) -> Usage:
        """What will have been used if the answers to everything in flight are lost."""
        return sum(self._charges, self.usage)

    @property
    def limits(self) -> RlmLimits:
        """The limits of the run."""
        return self._limits

    @property
    def used(self) -> Usage:
        """The usage of the run and all below it."""
        return self.usage

    def add(self, usage: Usage) -> None:
        """Count what was used here, here and in every purse above."""
        for purse in self._all():
            purse.usage = purse.usage + usage
        self._queue.serve()

    def refuse(self, verdict: Verdict) -> None:
        """Let no further request go out, here and above, where a limit bounds the cost: that of an answer is unknown.

        Raises LimitReached where there is such a limit.
        """
        bound = [purse for purse in self._all() if requires_price(purse._limits)]
        for purse in bound:
            purse.unpriced = verdict
        if bound:
            raise LimitReached(verdict)

    def refusal(self, need: Usage = NO_USAGE) -> Verdict | None:
        """Return why a request may not go out: a limit, here or above, that is used up or cannot cover its cost."""
        verdicts = (purse.own_refusal(need) for purse in self._all())
        return next((verdict for verdict in verdicts if verdict is not None), None)

    def own_refusal(self, need: Usage) -> Verdict | None:
        """Return why a request may not go out here; runs above are not asked."""
        return PayingAccount.own_refusal(self, need) if self.unpriced is None else self.unpriced

    def count_call(self) -> None:
        """Count one question. Raises LimitReached where none is left, here or above; then none is counted."""
        for purse in self._all():
            verdict = sub_calls(purse.calls, purse._limits.max_sub_calls)
            if not verdict:
                raise LimitReached(verdict)
        for purse in self._all():
            purse.calls += 1

    @contextlib.asynccontextmanager
    async def request(self, need: Usage, charge: Usage | None = None) -> AsyncIterator[RequestUsage]:
        """Wait until a request fits that uses about `need`, and count what its bill says afterwards.

        The cost of `need` is the most that it can cost; without one it goes out alone. One that is cut off counts as
        `charge`, an estimate. Raises LimitReached where a limit is used up or cannot cover
        the request, and what `announce` raises.
        """
        purses = tuple(self._all())
        await self._reserve(purses, need)
        charge = need.as_estimate() if charge is None else charge
        for purse in purses:
            purse._charges.append(charge)
        bill = RequestUsage()
        try:
            outermost = purses[-1]
            if outermost.announce is not None:
                await outermost.announce()
            try:
                yield bill
            except asyncio.CancelledError:
                bill.usage = charge
                raise
        finally:
            for purse in purses:
                purse._charges.remove(charge)
            self._queue.release(purses, need)
            self.add(bill.usage)

    # ---- inside ----

    def _all(self) -> Iterator[RunBudget]:
        purse: RunBudget | None = self
        while purse is not None:
            yield purse
            purse = purse._lender

    async def _reserve(self, purses: Sequence[RunBudget], need: Usage) -> None:
        made = self._queue.request(purses, need)
        try:
            refusal = await made.answer
        except BaseException:
            self._queue.withdraw(made)
            raise
        if refusal is not None:
            raise LimitReached(refusal)


def estimated(messages: Iterable[Message]) -> Usage:
    """Return what a request is likely to need, by four characters a token; how long an answer gets nobody knows."""
    chars = sum(len(message.text) for message in messages)
    return Usage(math.ceil(chars / _CHARS_A_TOKEN), 0)
