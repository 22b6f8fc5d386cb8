"""Budgets that a run shares with its child runs: reserved before each model request, settled after it.

Tokens and cost are shared; iterations, tool calls and time belong to each run alone. Each run of a tree has an
account, and its usage counts for every run above it, in their limits and in their journals.

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
from dataclasses import dataclass, field, replace
from operator import sub
from typing import Any, NamedTuple

from orchestrator.errors import LimitReached
from orchestrator.kernel.run import Run
from orchestrator.llm.message import NO_USAGE, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import ChildUsage, LoopContext
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


_LEAST_COST = 1e-6
"""One micro-unit, the smallest possible limit."""


@dataclass(slots=True, eq=False)
class BudgetAccount(PayingAccount):
    """Budget of one run within the limits of the runs above it, and the reservations of its child runs."""

    run: Run[LoopContext, Any]
    lender: BudgetAccount | None = None
    """Account of the parent run."""
    dormant: dict[str, Usage] = field(default_factory=dict)
    """Child run -> usage counted for it after a crash, until it is resumed."""
    ancestors: tuple[BudgetAccount, ...] = field(init=False)
    """Accounts of all runs above, the nearest first."""
    children: dict[str, Any] = field(init=False, default_factory=dict)
    """Id -> result of each child run that a tool of this run started and that has ended here."""
    flying: list[Usage] = field(init=False, default_factory=list)
    """Reservations for requests in flight below this run."""
    queue: ReservationQueue = field(init=False)
    """Requests of the whole tree that do not fit yet."""

    def __post_init__(self) -> None:
        lender = self.lender
        self.ancestors = () if lender is None else (lender, *lender.ancestors)
        self.queue = ReservationQueue() if lender is None else lender.queue

    @property
    def limits(self) -> Limits:
        """The limits of the run."""
        return self.run.ctx.limits

    @property
    def used(self) -> Usage:
        """The usage of the run and its child runs."""
        return self.run.ctx.spent.total

    @property
    def kept_back(self) -> float:
        """The share that the run keeps for a wrap-up turn of its own. A run of a team has no turns."""
        limits = self.limits
        return limits.wrap_up_share if limits.wrap_up_turns and isinstance(self.run.ctx, LoopContext) else 0.0

    async def reserve(self, need: Usage) -> None:
        """Return when a request that uses at most `need` may be sent; `settle` must follow.

        A need without a cost may cost any amount. While the request waits, the journal records that, so that a crash
        charges nothing for it. Raises LimitReached if a run above has nothing left, or less than the maximum cost of
        the request.
        """
        if not self.ancestors:
            return
        made = self.queue.request(self.ancestors, need)
        if not made.answer.done():
            await self._wait(made)
        self.run.attach_guards(made.rows)
        refusal = made.answer.result()
        if refusal is not None:
            raise LimitReached(refusal)

    def settle(self, need: Usage, used: Usage) -> None:
        """Replace a reservation by the actual usage of the request."""
        if not self.ancestors:
            return
        self.queue.release(self.ancestors, need)
        for account in self.ancestors:
            account.add(used)
        self.queue.serve()

    def found(self, run_id: str, used: Usage) -> None:
        """Count the usage of a direct child run from its own records, in place of the earlier count."""
        more = used.combined(self.dormant.pop(run_id, NO_USAGE), sub)
        for account in (self, *self.ancestors):
            account.add(more)

    def add(self, used: Usage) -> None:
        """Count the usage of a child run."""
        spent = self.run.ctx.spent
        if spent.below is None:
            spent.below = ChildUsage()
        spent.below.usage = spent.below.usage + used

    def own_refusal(self, need: Usage, rows: list[Row]) -> Verdict | None:
        """Return the verdict on a limit that is used up, or whose rest is below the cost of `need`; else None.

        Adds the evaluations to `rows`.
        """
        verdict = PayingAccount.own_refusal(self, need, rows)
        if verdict is None:
            return None
        detail = f"of run {self.run.run_id}"
        return verdict._replace(detail=f"{verdict.detail}, {detail}" if verdict.detail else detail)

    async def _wait(self, made: Reservation) -> None:
        run = self.run
        try:
            run.note("parked", {"reason": "waiting", "at": run.deps.clock.time()})
            await run.settle()
            if await made.answer is None:
                run.note("reserved", {"usage": made.need})
                await run.settle()
        except BaseException:
            self.queue.withdraw(made)
            raise


@dataclass(slots=True, eq=False)
class ChildBudget(BudgetAccount):
    """Budget of the child runs of a run whose context has neither limits nor usage."""

    own_limits: Limits = field(default_factory=lambda: Limits(max_iterations=0))
    usage: Usage = NO_USAGE
    """Usage of the child runs."""

    def lend_from(self, lender: BudgetAccount | None) -> None:
        """Set the account of the parent run, before the run is driven."""
        self.lender = lender
        self.__post_init__()

    @property
    def limits(self) -> Limits:
        """The limits of all child runs together."""
        return self.own_limits

    @property
    def used(self) -> Usage:
        """The usage of the child runs."""
        return self.usage

    def add(self, used: Usage) -> None:
        """Count the usage of a child run."""
        self.usage = self.usage + used


def lend_limits(account: BudgetAccount, limits: Limits, share: float) -> Limits:
    """Return the limits of a child run: its own, and at most `share` of the rest of each limit of `account`.

    A share of 0 returns them unchanged. At least one token or one micro-unit is given, because 0 would mean no limit.
    """
    if not share:
        return limits
    own, used = account.limits, account.used

    def part(limit: float, spent: float, least: float, own: float) -> float:
        rest = max(least, share * (limit - spent)) if limit else 0
        return min(own, rest) if own and rest else own or rest  # 0 means no limit

    return replace(
        limits,
        max_input_tokens=int(part(own.max_input_tokens, used.input_tokens, 1, limits.max_input_tokens)),
        max_output_tokens=int(part(own.max_output_tokens, used.output_tokens, 1, limits.max_output_tokens)),
        max_cost=part(own.max_cost, used.cost_max or 0.0, _LEAST_COST, limits.max_cost),
        on_unknown_cost=(limits if limits.max_cost else own).on_unknown_cost,
    )
