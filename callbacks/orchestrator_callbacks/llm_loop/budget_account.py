"""Budgets that a run lends to the runs below it: reserved before each request to a model, settled after it.

What is lent are tokens and money; iterations, tool calls and time are each run's own. Each run of a tree has an
account, and what it spends counts for every run above it: for their limits, and as theirs in the journal. A request
goes out when it fits, by an upper estimate, into what every run above has left once all that is in flight below
that run has cost what was reserved for it. Where it does not fit it waits for some of that to be settled, so that a
cautious estimate refuses nothing; with nothing in flight it goes out, as a run on its own asks once more while
anything is left. So no limit is exceeded by more than one request, however many runs share it. A limit on cost is not
exceeded at all where the most that a request can cost is known: one that does not fit by itself is refused. A run
that holds a reservation never waits for one that waits, so there is no deadlock.
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
"""One micro-unit, the least that a limit can be."""


class _Budget(NamedTuple):
    """One limit of a run that lends."""

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
    """Return what to reserve: where the most that it can cost is unknown, so much that requests go one at a time."""
    return math.inf if usage.cost_micros is None else usage.cost_micros


def _budgets(limits: Limits) -> Iterator[_Budget]:
    """Yield what is limited, less what the run keeps back for a wrap-up turn of its own."""
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
    """What one run may spend of what the runs above it lend, and what those below it have in flight."""

    run: Run[LoopContext, Any]
    lender: BudgetAccount | None = None
    """Of the run above it."""
    dormant: dict[str, Usage] = field(default_factory=dict)
    """Run below -> what was counted for it after a crash, until it is taken up again itself."""
    above: tuple[BudgetAccount, ...] = field(init=False)
    """The accounts of all runs above it, the nearest first."""
    flying: list[Usage] = field(init=False, default_factory=list)
    """Reserved for requests in flight below this run."""
    waiting: deque[_Wish] = field(init=False)
    """Requests that do not fit yet: those of the whole tree, in the order they came."""

    def __post_init__(self) -> None:
        lender = self.lender
        self.above = () if lender is None else (lender, *lender.above)
        self.waiting = deque() if lender is None else lender.waiting

    async def reserve(self, need: Usage) -> None:
        """Return once a request that uses `need` at most may go out; `settle` must follow.

        A need without a cost is one that may cost anything. Raises LimitReached when a run above has nothing left, or
        less than the request can cost. While the request waits, the journal says so: after
        a crash nothing is charged for it.
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
        """Put what a request used in the place of what was reserved for it."""
        if not self.above:
            return
        for account in self.above:
            account.flying.remove(need)
            account.add(used)
        _serve(self.waiting)

    def found(self, run_id: str, used: Usage) -> None:
        """Count what a run right below has used by its own records, in the place of what was counted before."""
        more = used.combined(self.dormant.pop(run_id, NO_USAGE), sub)
        for account in (self, *self.above):
            account.add(more)

    def add(self, used: Usage) -> None:
        """Count what a run below has used."""
        spent = self.run.ctx.spent
        if spent.below is None:
            spent.below = ChildUsage()
        spent.below.usage = spent.below.usage + used

    def refusal(self, need: Usage) -> Verdict | None:
        """Return the verdict on a limit of which nothing is left to lend, or less than `need` can cost; or None."""
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
        """Tell whether `need` fits beside what is in flight below this run; alone anything fits."""
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
            _serve(self.waiting)  # it may have been in somebody's way


@dataclass(frozen=True, slots=True, eq=False)
class _Wish:
    """A request that is to go out. The answer is None for yes, or the refusal."""

    account: BudgetAccount
    need: Usage
    answer: asyncio.Future[Verdict | None]


def _serve(waiting: deque[_Wish]) -> None:
    """Let requests out or refuse them. None passes one that came before it and waits for the same run's budget."""
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
    """Return the limits of a run below: its own, and at most `share` of what is left of each limit of `ctx`.

    A share of 0 leaves them as they are. At least one token, or next to no money, is lent: 0 would be no limit.
    """
    if not share:
        return limits
    own, used = ctx.limits, ctx.spent.total

    def part(limit: float, spent: float, least: float, own: float) -> float:
        rest = max(least, share * (limit - spent)) if limit else 0
        return min(own, rest) if own and rest else own or rest  # 0 is none

    return replace(
        limits,
        max_input_tokens=int(part(own.max_input_tokens, used.input_tokens, 1, limits.max_input_tokens)),
        max_output_tokens=int(part(own.max_output_tokens, used.output_tokens, 1, limits.max_output_tokens)),
        max_cost=part(own.max_cost, used.cost or 0.0, _LEAST_COST, limits.max_cost),
        on_unknown_cost=(limits if limits.max_cost else own).on_unknown_cost,
    )
