"""`orchestrator runs list`: the recorded runs, newest first."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any, NamedTuple

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json
from orchestrator.cli.runs.phrase import many, roughly, table
from orchestrator.cli.runs.position import head_reason
from orchestrator.cli.runs.store import OpenStore, at_journal, head_json
from orchestrator.cli.runs_group import ListOptions
from orchestrator.errors import ConfigError, JournalError
from orchestrator.kernel.journal import ENGINE, RunHead
from orchestrator.runtime.runs.story import Story

STATUSES = ("open", "parked", "ended")


class ListedRun(NamedTuple):
    """One run; `story` is None if its records cannot be trusted."""

    head: RunHead
    story: Story | None


def list_runs(options: ListOptions) -> int:
    """Print the selected runs. Raises ConfigError, after the readable runs, for the unreadable ones."""
    if options.status not in (None, *STATUSES):
        raise ConfigError(f"unknown status {options.status!r}; known: {', '.join(STATUSES)}")
    if options.limit < 0:
        raise ConfigError(f"limit is {options.limit}; it must be 0 (all) or more")

    async def work(store: OpenStore) -> tuple[list[ListedRun], int, str]:
        heads, problem = await store.heads()
        fits = [
            head
            for head in reversed(heads)
            if options.status in (None, head.status) and _of_graph(options, head)
        ]
        rows: list[ListedRun] = []
        for head in islice(fits, options.limit or None):
            try:
                rows.append(ListedRun(head, await store.story(head)))
            except JournalError as error:
                rows.append(ListedRun(head, None))
                problem = problem or str(error)
        _print(store, options, rows, len(fits), len(heads))
        return rows, len(fits), problem

    _, _, problem = at_journal(options.journal, work, only_reads=True)
    if problem:
        raise ConfigError(f"{problem} (`orchestrator doctor` lists everything that is wrong)")
    return Exit.COMPLETED


def _of_graph(options: ListOptions, head: RunHead) -> bool:
    return head.graph == options.graph if options.graph else options.all or head.graph != ENGINE


def _print(store: OpenStore, options: ListOptions, rows: list[ListedRun], fits: int, known: int) -> None:
    if options.json:
        for row in rows:
            say_json(_plain(row))
        return
    if not rows:
        say("no run yet" if not known else f"none of {many(known, 'run')} fits")
        return
    now = time.time()
    heads = ("run", "graph", "status", "why", "state", "turn", "held by", "age", "updated")
    for line in table(heads, [_cells(row, now) for row in rows], right=("turn", "age", "updated")):
        say(line)
    if fits > len(rows):
        say(f"  … and {fits - len(rows):,} more: --limit 0 shows all")
    if (asked := next((row for row in rows if _waits(row)), None)) is not None:
        say(f"\nwaiting for you: {store.command('show', asked.head.run_id)}")


def _waits(row: ListedRun) -> bool:
    return row.head.status != "ended" and row.story is not None and bool(row.story.questions)


def _cells(row: ListedRun, now: float) -> tuple[str, ...]:
    head, story = row
    return (
        head.run_id,
        head.graph,
        head.status,
        _why(row),
        "(cannot be read)" if story is None else story.state or "(not started)",
        "" if story is None else str(story.turn),
        head.owner or "-",
        roughly(now - head.created_at),
        f"{roughly(now - head.updated_at)} ago",
    )


def _why(row: ListedRun) -> str:
    outcome = row.story.ended.get("outcome") if row.story is not None and row.story.ended else None
    if outcome is None:
        return head_reason(row.head)
    return str(outcome) if row.head.reason in ("", "none") else f"{outcome} ({row.head.reason})"


def _plain(row: ListedRun) -> dict[str, Any]:
    story = row.story
    if story is None:
        return {**head_json(row.head), "outcome": None, "state": None, "turn": None, "readable": False}
    outcome = story.ended.get("outcome") if story.ended else None
    return {
        **head_json(row.head),
        "outcome": outcome,
        "state": story.state,
        "turn": story.turn,
        "readable": True,
    }
