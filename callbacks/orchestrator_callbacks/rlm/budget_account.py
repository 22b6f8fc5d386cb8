"""The budget of a run, shared with its queries and child runs.

Each run of a tree has a budget, and usage below counts in every budget above; `llm_loop.reservation` decides when a
request is sent. Before it is sent, the usage with an estimate for every answer in flight is recorded (`announce`), so
that a crash does not lose it.
"""

# ruff: noqa: SLF001 - budgets of one tree access each other

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.errors import LimitReached
from orchestrator.llm.message import NO_USAGE, Message, Usage
from orchestrator.llm.usage import approximate_tokens
from orchestrator.machines.rlm.limits import RlmLimits
from orchestrator_callbacks.llm_loop.request_usage import requires_price
from orchestrator_callbacks.llm_loop.reservation import PayingAccount, ReservationQueue
from orchestrator_guards import (
    Verdict,
    sub_calls,
)
from orchestrator_guards.evaluation import Row, row_of


@dataclass(slots=True)
class RequestUsage:
    """The usage of one request, set by its caller."""

    usage: Usage = NO_USAGE


class RunBudget(PayingAccount):
    """The budget of one run; `lender` is the budget of its parent run."""

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
        """Usage of the run and all its child runs."""
        self.calls = calls
        """Queries below the run."""
        self.unpriced: Verdict | None = None
        """Why the cost is unknown: an answer, here or below, had no price."""
        self.record: Callable[[Sequence[Row]], None] = lambda _: None
        """Set on the budget of a run: records the evaluations of guards about its requests."""
        self.announce: Callable[[], Awaitable[None]] | None = None
        """Set on the outermost budget: records `committed` before each request here or below is sent."""

    @property
    def committed(self) -> Usage:
        """The usage if the answers to all requests in flight are lost."""
        return sum(self._charges, self.usage)

    @property
    def limits(self) -> RlmLimits:
        """The limits of the run."""
        return self._limits

    @property
    def all_limits(self) -> tuple[RlmLimits, ...]:
        """The limits of the run and of the runs above it, the nearest first."""
        return tuple(purse._limits for purse in self._all())

    @property
    def used(self) -> Usage:
        """The usage of the run and all below it."""
        return self.usage

    def add(self, usage: Usage) -> None:
        """Count usage here and in every budget above."""
        for purse in self._all():
            purse.usage = purse.usage + usage
        self._queue.serve()

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
        verdicts = (purse.own_refusal(need, []) for purse in self._all())
        return next((verdict for verdict in verdicts if verdict is not None), None)

    def own_refusal(self, need: Usage, rows: list[Row]) -> Verdict | None:
        """Return the refusal by a limit of this budget; budgets above are not asked. Adds the evaluations to `rows`."""
        if self.unpriced is None:
            return PayingAccount.own_refusal(self, need, rows)
        rows.append(row_of(self.unpriced))
        return self.unpriced

    def count_call(self) -> None:
        """Count one query. Raises LimitReached, without counting it, if no query is left here or above."""
        for purse in self._all():
            verdict = sub_calls(purse.calls, purse._limits.max_sub_calls)
            self.record((row_of(verdict),))
            if not verdict:
                raise LimitReached(verdict)
        for purse in self._all():
            purse.calls += 1

    @contextlib.asynccontextmanager
    async def request(
        self, need: Usage, charge: Usage | None = None, interrupted: Callable[[], Usage] | None = None
    ) -> AsyncIterator[RequestUsage]:
        """Wait until a request of about `need` fits, and count its usage afterwards.

        Args:
            need: Estimated usage. Its cost is the maximum cost; a request of unknown cost is sent alone.
            charge: Estimate that is counted if a crash loses the answer; `need` by default.
            interrupted: Returns what is counted if the request is cancelled; `charge` by default.

        Raises:
            LimitReached: A limit is used up or cannot cover the request.
            Exception: Any error of `announce`.
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
                bill.usage = charge if interrupted is None else interrupted()
                raise
        finally:
            for purse in purses:
                purse._charges.remove(charge)
            self._queue.release(purses, need)
            self.add(bill.usage)

    # ---- private ----

    def _all(self) -> Iterator[RunBudget]:
        purse: RunBudget | None = self
        while purse is not None:
            yield purse
            purse = purse._lender

    async def _reserve(self, purses: Sequence[RunBudget], need: Usage) -> None:
        made = self._queue.request(purses, need)
        try:
            refusal = await made.answer
            self.record(made.rows)
        except BaseException:
            self._queue.withdraw(made)
            raise
        if refusal is not None:
            raise LimitReached(refusal)


def estimated(messages: Iterable[Message]) -> Usage:
    """Return the estimated usage of a request at four characters per token. The length of the answer is unknown."""
    chars = sum(len(message.text) for message in messages)
    return Usage(approximate_tokens(chars), 0)
