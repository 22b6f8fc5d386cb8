"""Hooks of an agent that can hand over, in place of the loop's own.

They are bound instead of those of the same name, so that the turns of other agents have no question to answer.
"""

from __future__ import annotations

from types import SimpleNamespace

from orchestrator.machines.llm_loop.model import LoopEvent
from orchestrator.machines.team.model import HANDOFF, TeamEvent
from orchestrator_callbacks.llm_loop import enter, turn_accounting
from orchestrator_callbacks.llm_loop.deps import LoopRun


async def enter_update_budgets(run: LoopRun) -> LoopEvent | TeamEvent:
    """End the segment if a handoff of this turn was accepted. All other calls of the turn have their results."""
    for result in run.ctx.results:
        if result is None or result.is_error:
            continue
        spec = run.deps.tools.find(result.call.name)
        if spec is not None and spec.kind == HANDOFF:
            turn_accounting.account(run)
            return TeamEvent.HAND_OVER
    return await enter.enter_update_budgets(run)


async def enter_finalize(run: LoopRun) -> None:
    """Pass the output to the host's hooks, unless the segment ended with a handoff and has none."""
    if run.step is None or run.step.event != TeamEvent.HAND_OVER:
        await enter.enter_finalize(run)


ENTER = SimpleNamespace(
    __name__=__name__,
    **{name: hook for name, hook in vars(enter).items() if name.startswith("enter_")}
    | {"enter_update_budgets": enter_update_budgets, "enter_finalize": enter_finalize},
)
"""The `enter_` hooks of such an agent."""
