"""transitions.jsonl of a session: one line per transition in a fixed format, in addition to the ordinary facts.

A line is written after its transition is durable. A crash between the two omits or truncates it; when the run is
resumed, the line is restored from the journal, which has all transitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.kernel.journal import Record
from orchestrator.kernel.record import Fact, Transition
from orchestrator.kernel.run import Run
from orchestrator.machines.ralph.model import RalphEvent, RalphState, trigger
from orchestrator_callbacks.ralph.deps import RalphRun

NAME = "transitions.jsonl"


class SessionLog:
    """An observer that writes the transitions of runs into their sessions. `find` returns a live run."""

    def __init__(self, find: Callable[[str], Run[Any, Any] | None]) -> None:
        self._find = find

    def observe(self, fact: Fact) -> None:
        """Write a line for a transition."""
        if type(fact) is Transition and (run := self._find(fact.run_id)) is not None:
            ctx = run.ctx
            move = fact.source, fact.event, fact.dest
            run.deps.session.log(line(ctx.session_id, fact.at, move, ctx.about, ctx.blockers))


def line(
    session_id: str,
    at: float,
    move: tuple[str, str, str],
    about: tuple[str | None, int],
    blockers: Sequence[str] = (),
) -> str:
    """Return a line of the log without its line end.

    `move` is from, event, to; `about` is the task and its attempt. The line of a failure names its blockers.
    """
    source, event, dest = move
    known = event in set(RalphEvent) and source in set(RalphState)
    return json.dumps(
        {
            "timestamp": datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "sessionId": session_id,
            "transition": {
                "from": source,
                "to": dest,
                "trigger": trigger(RalphEvent(event), RalphState(source)) if known else event,
                "taskId": about[0],
                "attemptNumber": about[1],
                **({"blockers": list(blockers)} if blockers and dest == RalphState.FAILED else {}),
            },
        },
        ensure_ascii=False,
    )


def mend(run: RalphRun, records: Iterable[Record]) -> None:
    """Complete the log of a resumed run. Raises OSError.

    The log is not synced: after a power loss any part of it may be missing or wrong.
    """
    path = Path(run.ctx.session_path) / NAME
    written = path.read_bytes() if path.exists() else b""
    run.ctx.log_offset = min(run.ctx.log_offset, written.rfind(b"\n") + 1)
    found = written[run.ctx.log_offset :].splitlines(keepends=True)
    moves = list(_lines(run.ctx.session_id, records))
    right = 0
    for one, move in zip(found, moves, strict=False):
        if one != f"{move}\n".encode():
            break
        right += 1
    if right < len(found):
        with path.open("r+b") as file:
            file.truncate(run.ctx.log_offset + sum(map(len, found[:right])))
    for move in moves[right:]:
        run.deps.session.log(move)


def _lines(session_id: str, records: Iterable[Record]) -> Iterable[str]:
    """Yield the lines of a run. Task and attempt of a transition are in the context that was written with it."""
    about: tuple[str | None, int] = (None, 0)
    blockers: Sequence[str] = ()
    pending: Record | None = None

    def line_of(record: Record) -> str:
        body = record.body
        move = body["source"], body["event"], body["dest"]
        return line(session_id, body["at"], move, about, blockers)

    for record in records:
        if record.kind == "transition":
            if pending is not None:
                yield line_of(pending)
            pending = record
        elif record.kind == "context":
            task, attempt = record.body.get("about", about)
            about = (task, attempt)
            blockers = record.body.get("blockers", blockers)
    if pending is not None:
        yield line_of(pending)
