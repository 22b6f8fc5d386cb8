"""Recovery of programs whose owner died: they are ended before the work of their run is repeated, or a person is asked.

Programs of this host are found and ended. Nothing is known about a program of another host, and about any program on
a system that does not show the owner of processes. Then the run is parked with the reason `unknown_effect` and the
names of the programs, until a person states that they have ended: with `resume(run_id, again=True)`, or with a
`resume` request that is posted after the question. A cancelled run repeats nothing and asks no question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.errors import Suspended
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Posted
from orchestrator.runtime.service import surviving_program

REASON = "unknown_effect"
"""Reason of a parked run that asks a person about its programs."""
_THEN = "end it, then resume with again=True (`--again`)"


class ProgramsUnknown(Suspended):
    """Programs of the run may still run, which only a person can find out."""

    def __init__(self, run_id: str, why: str, *, parked: bool = False) -> None:
        super().__init__(run_id, why)
        self.parked = parked
        """Whether the run was parked for this now; False if it was parked before."""
        self.args = (f"run {run_id!r} waits for a person: {why}",)


def question(stored: StoredRun) -> str:
    """Return the question about the programs of a parked run, "" if there is none."""
    parked = stored.parked or {}
    return str(parked.get("why", "")) if parked.get("programs") else ""


def is_answered(stored: StoredRun, unread: Iterable[Posted]) -> bool:
    """Return whether a request allows a run with such a question to continue."""
    asked = int((stored.parked or {}).get("inbox", 0)) if question(stored) else None
    return any(
        one.kind == "cancel" or (one.kind == "resume" and asked is not None and one.number > asked)
        for one in unread
    )


async def end_programs(stored: StoredRun) -> tuple[list[str], str]:
    """End the remaining programs of a run on this host.

    Returns the names of the programs that were still running, and a sentence about programs of unknown state, or "".
    """
    programs, here = stored.programs, surviving_program.host_name()
    local = [mark for mark, one in programs.items() if one.get("host") == here]
    known = surviving_program.can_find()
    ended = await asyncio.to_thread(surviving_program.end, local if known else ())
    names = [str(programs[mark].get("name")) for mark in local if mark in ended.marks]
    elsewhere = next((one for one in programs.values() if one.get("host") != here), None)
    if elsewhere is not None:
        there = elsewhere.get("host")
        return names, (
            f"{_named(elsewhere)} was started on host {there!r} and may still run there, which cannot be seen from "
            f"this host ({here!r}): check there and {_THEN}"
        )
    if local and not known:
        return names, (
            f"{_named(programs[local[0]])} was started by a process that died and may still run: only Linux shows "
            f"which programs a process has started; look for it and {_THEN}"
        )
    return names, _left(ended.left)


def parked_body(stored: StoredRun, why: str, unread: Sequence[Posted], at: float) -> dict[str, Any]:
    """Return the record that asks a person."""
    return {
        "reason": REASON,
        "at": at,
        "t": stored.elapsed,
        "why": why,
        "programs": list(stored.programs),
        "inbox": max((one.number for one in unread), default=stored.inbox),
    }


def _named(program: Mapping[str, Any]) -> str:
    call = program.get("call")
    return f"the program {program.get('name')!r}" + (f" (call {call})" if call else "")


def _left(left: Sequence[int]) -> str:
    if not left:
        return ""
    numbers = ", ".join(map(str, left))
    return f"a program of the run still runs and cannot be ended by this user (process {numbers}): {_THEN}"
