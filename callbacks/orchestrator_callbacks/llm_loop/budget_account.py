"""Budgets that a run shares with its child runs: reserved before each model request, settled after it.

Tokens and cost are shared; iterations, tool calls and time belong to each run alone. Each run of a tree has an
account, and its usage counts for every run above it, in their limits and in their journals.

A request is sent when its upper estimate fits into the remaining budget of every run above, minus all reservations in
flight. Otherwise it waits until some of them are settled, so a cautious estimate refuses nothing. With nothing in
flight the request is sent, just as a single run sends another request while anything is left. Therefore no limit is
exceeded by more than one request, however many runs share it. A cost limit is not exceeded at all if the maximum cost
of a request is known: a request that does not fit alone is refused.

A run that holds a reservation never waits for a waiting run, so there is no deadlock.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
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

_LEAST_COST = 1e-6
"""One micro-unit, the smallest possible limit."""


class _Budget(NamedTuple):
    """One limit of a run that its child runs share."""

    guard: Callable[[Any, Any], Verdict]
    used: Callable[[Usage], float]
    needed: Callable[[Usage], float]
    limit: float


def _input(usage: Usage) -> float:
    return usage.input_tokens


def _output(usage: Usage) -> float:
    return usage.output_tokens


def _cost(usage: Usage) -> int:
    return usage.cost_micros or 0


def _most_cost(usage: Usage) -> float:
    """Return the cost to reserve. An unknown maximum reserves everything, so that such requests go one at a time."""
    return math.inf if usage.cost_micros is None else usage.cost_micros


def _budgets(limits: Limits) -> Iterator[_Budget]:
    """Yield the limited budgets, without the share that the run reserves for its own wrap-up turn."""
    share = limits.wrap_up_share if limits.wrap_up_turns else 0.0
    if limits.max_input_tokens:
        yield _Budget(input_tokens, _input, _input, reserve(limits.max_input_tokens, share))
    if limits.max_output_tokens:
        yield _Budget(output_tokens, _output, _output, reserve(limits.max_output_tokens, share))
    if limits.max_cost:
        yield _Budget(cost, _cost, _most_cost, _cost_limit(limits))


def _cost_limit(limits: Limits) -> int:
    share = limits.wrap_up_share if limits.wrap_up_turns else 0.0
    return reserve(limits.max_cost_micros, share)


@dataclass(slots=True, eq=False)
class BudgetAccount:
    """Budget of one run within the limits of the runs above it, and the reservations of its child runs."""

    run: Run[LoopContext, Any]
    lender: BudgetAccount | None = None
    """Account of the parent run."""
    dormant: dict[str, Usage] = field(default_factory=dict)
    """Child run -> usage counted for it after a crash, until it is resumed."""
    above: tuple[BudgetAccount, ...] = field(init=False)
    """Accounts of all runs above, the nearest first."""
    flying: list[Usage] = field(init=False, default_factory=list)
    """Reservations for requests in flight below this run."""
    waiting: deque[_Wish] = field(init=False)
    """Requests of the whole tree that do not fit yet, in order of arrival."""

    def __post_init__(self) -> None:
        lender = self.lender
        self.above = () if lender is None else (lender, *lender.above)
        self.waiting = deque() if lender is None else lender.waiting

    async def reserve(self, need: Usage) -> None:
        """Return when a request that uses at most `need` may be sent; `settle` must follow.

        A need without a cost may cost any amount. While the request waits, the journal records that, so that a crash
        charges nothing for it. Raises LimitReached if a run above has nothing left, or less than the maximum cost of
        the request.
        """
        if not self.above:
            return
        wish = _Wish(self, need, asyncio.get_running_loop().create_future())
        self.waiting.append(wish)
        _serve(self.waiting)
        if not wish.answer.done():
            await self._wait(wish)
        refusal = wish.answer.result()
        if refusal is not None:
            raise LimitReached(refusal)

    def settle(self, need: Usage, used: Usage) -> None:
        """Replace a reservation by the actual usage of the request."""
        if not self.above:
            return
        for account in self.above:
            account.flying.remove(need)
            account.add(used)
        _serve(self.waiting)

    def found(self, run_id: str, used: Usage) -> None:
        """Count the usage of a direct child run from its own records, in place of the earlier count."""
        more = used.combined(self.dormant.pop(run_id, NO_USAGE), sub)
        for account in (self, *self.above):
            account.add(more)

    def add(self, used: Usage) -> None:
        """Count the usage of a child run."""
        spent = self.run.ctx.spent
        if spent.below is None:
            spent.below = ChildUsage()
        spent.below.usage = spent.below.usage + used

    def refusal(self, need: Usage) -> Verdict | None:
        """Return the verdict on a limit that is used up, or whose rest is below the cost of `need`; else None."""
        limits, used = self.run.ctx.limits, self.run.ctx.spent.total
        asked = [budget.guard(budget.used(used), budget.limit) for budget in _budgets(limits)]
        if need.cost_micros is not None:
            asked.append(request_cost(_cost(used), need.cost_micros, _cost_limit(limits)))
        verdict = first_refusal(asked)
        if verdict is None:
            return None
        detail = f"of run {self.run.run_id}"
        return verdict._replace(detail=f"{verdict.detail}, {detail}" if verdict.detail else detail)

    def covers(self, need: Usage) -> bool:
        """Return whether `need` fits beside the reservations below this run. A single request always fits."""
        if not self.flying:
            return True
        used = self.run.ctx.spent.total
        for budget in _budgets(self.run.ctx.limits):
            left = budget.limit - budget.used(used) - sum(map(budget.needed, self.flying))
            if not affordable(left, budget.needed(need), factor=1.0):
                return False
        return True

    async def _wait(self, wish: _Wish) -> None:
        run = self.run
        try:
            run.note("parked", {"reason": "waiting", "at": run.deps.clock.time()})
            await run.settle()
            if await wish.answer is None:
                run.note("reserved", {"usage": wish.need})
                await run.settle()
        except BaseException:
            self._withdraw(wish)
            raise

    def _withdraw(self, wish: _Wish) -> None:
        if wish.answer.done() and not wish.answer.cancelled() and wish.answer.result() is None:
            self.settle(wish.need, NO_USAGE)
        else:
            wish.answer.cancel()
            _serve(self.waiting)  # it may have blocked another request


@dataclass(frozen=True, slots=True, eq=False)
class _Wish:
    """A request to be sent. The answer is None if it may be sent, else the refusal."""

    account: BudgetAccount
    need: Usage
    answer: asyncio.Future[Verdict | None]


def _serve(waiting: deque[_Wish]) -> None:
    """Send or refuse waiting requests.

    A request does not overtake an earlier one that waits for the same run's budget.
    """
    busy: set[BudgetAccount] = set()
    for wish in tuple(waiting):
        if wish.answer.cancelled():
            waiting.remove(wish)
            continue
        above = wish.account.above
        refusal = next(
            (verdict for account in above if (verdict := account.refusal(wish.need)) is not None), None
        )
        if refusal is None:
            obstacle = next((one for one in above if one in busy or not one.covers(wish.need)), None)
            if obstacle is not None:
                busy.add(obstacle)
                continue
            for account in above:
                account.flying.append(wish.need)
        waiting.remove(wish)
        wish.answer.set_result(refusal)


def lent(ctx: LoopContext, limits: Limits, share: float) -> Limits:
    """Return the limits of a child run: its own, and at most `share` of the rest of each limit of `ctx`.

    A share of 0 returns them unchanged. At least one token or one micro-unit is given, because 0 would mean no limit.
    """
    if not share:
        return limits
    own, used = ctx.limits, ctx.spent.total

    def part(limit: float, spent: float, least: float, own: float) -> float:
        rest = max(least, share * (limit - spent)) if limit else 0
        return min(own, rest) if own and rest else own or rest  # 0 means no limit

    return replace(
        limits,
        max_input_tokens=int(part(own.max_input_tokens, used.input_tokens, 1, limits.max_input_tokens)),
        max_output_tokens=int(part(own.max_output_tokens, used.output_tokens, 1, limits.max_output_tokens)),
        max_cost=part(own.max_cost, used.cost or 0.0, _LEAST_COST, limits.max_cost),
        on_unknown_cost=(limits if limits.max_cost else own).on_unknown_cost,
    )
