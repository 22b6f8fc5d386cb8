"""Reservations of requests to models in the budgets of the runs that pay for them.

A request is paid by several accounts: those of the runs that lend to it. It is sent when it fits, by an estimate, into
the limits of all of them after every request in flight has cost its reservation. Otherwise it waits until some
of these are settled, so that a cautious estimate refuses nothing; with nothing in flight it is sent as long as anything
is left. So no limit is exceeded by more than one request, however many runs share it. A limit on cost is not exceeded
at all if the largest cost of a request is known: a request that does not fit by itself is refused. A request that has
a reservation never waits for one that has none, so there is no deadlock.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchestrator.llm.message import Usage
from orchestrator_guards import (
    Verdict,
    affordable,
    cost,
    first_refusal,
    input_tokens,
    output_tokens,
    request_cost,
    reserve,
)
from orchestrator_guards.evaluation import Row, given, row_of


class _Budget(NamedTuple):
    """One limit of an account."""

    guard: Callable[[Any, Any], Verdict]
    used: Callable[[Usage], float]
    needed: Callable[[Usage], float]
    limit: float


def _input(usage: Usage) -> float:
    return usage.input_tokens


def _output(usage: Usage) -> float:
    return usage.output_tokens


def _cost(usage: Usage) -> int:
    return usage.cost_for_limits


def _most_cost(usage: Usage) -> float:
    """Return the cost to reserve: infinite if the largest cost is unknown, so that requests are sent one by one."""
    return math.inf if usage.cost_micros is None else usage.cost_micros


class PayingAccount(ABC):
    """The account of a run whose limits bound the requests of others."""

    __slots__ = ()

    flying: list[Usage]
    """Reserved for requests in flight."""

    @property
    @abstractmethod
    def limits(self) -> Any:
        """The limits of the run: `max_input_tokens`, `max_output_tokens`, `max_cost_micros`."""

    @property
    @abstractmethod
    def used(self) -> Usage:
        """The usage of the run and its child runs."""

    @property
    def kept_back(self) -> float:
        """The share of each limit that is not lent."""
        return 0.0

    def own_refusal(self, need: Usage, rows: list[Row]) -> Verdict | None:
        """Return the verdict on a limit of which nothing is left, or less than `need` can cost; or None.

        Adds the evaluations to `rows`.
        """
        used = self.used
        asked = [budget.guard(budget.used(used), budget.limit) for budget in self._budgets()]
        rows += map(row_of, asked)
        if need.cost_micros is not None and self.limits.max_cost_micros:
            inputs = _cost(used), need.cost_micros, reserve(self.limits.max_cost_micros, self.kept_back)
            asked.append(request_cost(*inputs))
            rows.append(given(asked[-1], request_cost, *inputs))
        return first_refusal(asked)

    def covers(self, need: Usage) -> bool:
        """Return whether `need` fits beside the requests in flight; without any, everything fits."""
        if not self.flying:
            return True
        used = self.used
        for budget in self._budgets():
            left = budget.limit - budget.used(used) - sum(map(budget.needed, self.flying))
            if not affordable(left, budget.needed(need), factor=1.0):
                return False
        return True

    def _budgets(self) -> Iterator[_Budget]:
        limits, share = self.limits, self.kept_back
        if limits.max_input_tokens:
            yield _Budget(input_tokens, _input, _input, reserve(limits.max_input_tokens, share))
        if limits.max_output_tokens:
            yield _Budget(output_tokens, _output, _output, reserve(limits.max_output_tokens, share))
        if limits.max_cost_micros:
            yield _Budget(cost, _cost, _most_cost, reserve(limits.max_cost_micros, share))


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """A request that is to be sent."""

    payers: Sequence[PayingAccount]
    need: Usage
    answer: asyncio.Future[Verdict | None]
    """None: it may be sent. Else the refusal."""
    rows: list[Row] = field(default_factory=list)
    """The evaluations of guards that decided."""

    @property
    def granted(self) -> bool:
        """Whether it may be sent."""
        return self.answer.done() and not self.answer.cancelled() and self.answer.result() is None


class ReservationQueue:
    """The reservations that do not fit yet, of all runs of a tree, in the order in which they were requested."""

    def __init__(self) -> None:
        self._waiting: deque[Reservation] = deque()

    def request(self, payers: Sequence[PayingAccount], need: Usage) -> Reservation:
        """Request a reservation of `need` in each of these accounts. `release` or `withdraw` must follow."""
        made = Reservation(payers, need, asyncio.get_running_loop().create_future())
        self._waiting.append(made)
        self.serve()
        return made

    def release(self, payers: Sequence[PayingAccount], need: Usage) -> None:
        """Remove a reservation from the accounts; `serve` must follow when the usage is counted."""
        for account in payers:
            account.flying.remove(need)

    def withdraw(self, made: Reservation) -> None:
        """Remove a reservation of a request that was not sent."""
        if made.granted:
            self.release(made.payers, made.need)
        else:
            made.answer.cancel()
        self.serve()  # others may have waited for it

    def serve(self) -> None:
        """Grant or refuse reservations. None overtakes an earlier one that waits for the same account."""
        busy: set[PayingAccount] = set()
        for made in tuple(self._waiting):
            if made.answer.cancelled():
                self._waiting.remove(made)
                continue
            made.rows.clear()  # of an earlier look
            refusals = (account.own_refusal(made.need, made.rows) for account in made.payers)
            refusal = next((verdict for verdict in refusals if verdict is not None), None)
            if refusal is None:
                obstacle = next(
                    (one for one in made.payers if one in busy or not one.covers(made.need)), None
                )
                if obstacle is not None:
                    busy.add(obstacle)
                    continue
                for account in made.payers:
                    account.flying.append(made.need)
            self._waiting.remove(made)
            made.answer.set_result(refusal)
