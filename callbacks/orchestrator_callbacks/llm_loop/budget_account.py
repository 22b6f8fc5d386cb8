"""Budgets that a run shares with its child runs: reserved before each model request, settled after it.

Tokens and cost are shared; iterations, tool calls and time belong to each run alone. Each run of a tree has an
account, and its usage counts for every run above it, in their limits and in their journals. `reservation` decides when
a request is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import sub
from typing import Any

from orchestrator.errors import LimitReached
from orchestrator.kernel.run import Run
from orchestrator.llm.message import NO_USAGE, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import ChildUsage, LoopContext
from orchestrator_callbacks.llm_loop.reservation import PayingAccount, Reservation, ReservationQueue
from orchestrator_guards import (
    Verdict,
)
from orchestrator_guards.evaluation import Row

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
        """The share that the run keeps for a wrap-up turn of its own."""
        limits = self.limits
        return limits.wrap_up_share if limits.wrap_up_turns else 0.0

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


def lend_limits(ctx: LoopContext, limits: Limits, share: float) -> Limits:
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
        max_cost=part(own.max_cost, used.cost_max or 0.0, _LEAST_COST, limits.max_cost),
        on_unknown_cost=(limits if limits.max_cost else own).on_unknown_cost,
    )
