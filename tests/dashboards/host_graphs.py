"""Small graphs of the live host: one whose hooks and guards break, and the loop with other limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.kernel.graph import Edge, Graph
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.machine import Machine
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.model import LoopEvent, LoopState


class OddState(StrEnum):
    BEGIN = "begin"
    END = "end"
    LOST = "lost"


class OddEvent(StrEnum):
    GO = "go"
    STRAY = "stray"
    FAIL = "fail"


@dataclass(slots=True)
class OddContext:
    """`does`: go, stray (an event without an edge), or guard (a guard that raises)."""

    does: str = "go"
    iteration: int = 0


def sound(ctx: OddContext) -> bool:
    if ctx.does == "guard":
        raise ValueError("a guard that breaks")
    return True


ODD = Graph(
    name="odd",
    states=OddState,
    events=OddEvent,
    initial=OddState.BEGIN,
    terminal=frozenset((OddState.END, OddState.LOST)),
    failure=OddEvent.FAIL,
    context=OddContext,
    dwell={OddState.BEGIN: (60.0, OddEvent.FAIL)},
    strict=False,
    edges=(
        Edge(OddEvent.GO, (OddState.BEGIN,), OddState.END, sound),
        Edge(OddEvent.STRAY, (OddState.END,), OddState.LOST),
        Edge(OddEvent.FAIL, (OddState.BEGIN,), OddState.LOST),
    ),
)


class _OddHooks:
    async def enter_begin(self, run: object) -> OddEvent:
        does = run.ctx.does  # type: ignore[attr-defined]
        return OddEvent.STRAY if does == "stray" else OddEvent.GO


def odd_machine() -> Machine:
    return Machine(ODD, collect(ODD, _OddHooks()))


def _with(name: str, change: Callable[[float], float | None]) -> Graph:
    limits = dict(LLM_LOOP.dwell or {})
    changed = {
        state: None if limit is None or (new := change(limit[0])) is None else (new, limit[1])
        for state, limit in limits.items()
    }
    return LLM_LOOP.extend(name=name, dwell=changed)


STUCK = _with("stuck", lambda seconds: 2.0)
"""Two seconds for every state: what ignores its end is soon stuck."""

PATIENT = LLM_LOOP.extend(
    name="patient",
    dwell={
        **(LLM_LOOP.dwell or {}),
        LoopState.AWAIT_LLM: None,
        LoopState.PROCESS_TOOLS: (600.0, LoopEvent.FAILURE),
    },
)
"""Asking the model may take for ever, and the table says so."""

SIDE = LLM_LOOP.extend(name="side")
"""The loop as it is, under a name of its own: slots are counted by graph."""
