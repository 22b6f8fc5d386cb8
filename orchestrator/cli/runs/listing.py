"""`orchestrator runs list`: the recorded runs, in a chosen order."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs.events import reader_is_gone
from orchestrator.cli.runs.phrase import moment, roughly, table
from orchestrator.cli.runs.position import head_reason
from orchestrator.cli.runs.store import OpenStore, at_journal, head_json
from orchestrator.cli.runs_group import ListOptions
from orchestrator.cli.stop import on_signal
from orchestrator.errors import ConfigError, JournalError
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.runs.story import Story
from orchestrator_guards.money import in_currency

WATCH = 2.0
"""Seconds between two listings of --watch."""


class ListedRun(NamedTuple):
    """One run; `story` is None if its records cannot be trusted."""

    head: RunHead
    story: Story | None


def list_runs(options: ListOptions) -> int:
    """Print the selected runs. Raises ConfigError, after the readable runs, for the unreadable ones."""
    if options.limit < 0:
        raise ConfigError(f"limit is {options.limit}; it must be 0 (all) or more")
    if options.watch and options.json:
        raise ConfigError(
            "--watch prints a table for a person; --json prints the runs once: give one of them"
        )

    async def work(store: OpenStore) -> str:
        return await (_watch(store, options) if options.watch else _list_once(store, options))

    problem = at_journal(options.journal, work, only_reads=True)
    if problem:
        raise ConfigError(f"{problem} (`orchestrator doctor` lists everything that is wrong)")
    return Exit.COMPLETED


async def _list_once(store: OpenStore, options: ListOptions) -> str:
    """Print the listing; return a sentence about the unreadable runs, or ""."""
    page = await store.runs.page(
        order_by=options.sort.replace("-", "_"),
        limit=options.limit or None,
        after=None if options.after is None else (await store.run(options.after)).run_id,
        engines=options.all,
        **options.conditions,
    )
    problem = page.damage
    rows: list[ListedRun] = []
    for head in page.runs:
        try:
            rows.append(ListedRun(head, await store.story(head)))
        except JournalError as error:
            rows.append(ListedRun(head, None))
            problem = problem or str(error)
    if options.json:
        for row in rows:
            say_json(_plain(row))
    else:
        known = bool(rows) or bool((await store.runs.page(limit=1, engines=True)).runs)
        _print(store, options, rows, known=known, more=page.more)
    return problem


async def _watch(store: OpenStore, options: ListOptions) -> str:
    """Print the listing again every WATCH seconds until a signal or a closed output pipe."""
    stopped = asyncio.Event()
    problem = ""
    with on_signal(stopped.set):
        while not stopped.is_set() and not reader_is_gone():
            say(f"{moment(time.time())}, every {WATCH:g} s until Ctrl-C")
            problem = await _list_once(store, options)
            say("")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), WATCH)
    return problem


def _print(store: OpenStore, options: ListOptions, rows: list[ListedRun], *, known: bool, more: bool) -> None:
    if not rows:
        say("no run fits" if known else "no run yet")
        return
    now = time.time()
    columns = [*COLUMNS, *EXTRA.get(options.sort, ())]
    cells = [tuple(cell(row, now) for _, cell in columns) for row in rows]
    for line in table(tuple(name for name, _ in columns), cells, right=RIGHT):
        say(line)
    if more:
        say(f"  … and more: --limit 0 shows all, --after {shown(rows[-1].head.run_id)} the next")
    if (asked := next((row for row in rows if _waits(row)), None)) is not None:
        say(f"\nwaiting for you: {store.command('show', asked.head.run_id)}")


def _waits(row: ListedRun) -> bool:
    return row.head.status != "ended" and row.story is not None and bool(row.story.questions)


def _why(row: ListedRun) -> str:
    outcome = row.story.ended.get("outcome") if row.story is not None and row.story.ended else None
    if outcome is None:
        return head_reason(row.head)
    return str(outcome) if row.head.reason in ("", "none") else f"{outcome} ({row.head.reason})"


def _state(row: ListedRun) -> str:
    return "(cannot be read)" if row.story is None else row.story.state or "(not started)"


def _in_state(head: RunHead, now: float) -> str:
    return "" if head.status == "ended" else roughly(now - (head.state_since or head.created_at))


def _cost(head: RunHead) -> str:
    return "-" if head.cost_micros is None else f"{in_currency(head.cost_micros):g}"


Column = tuple[str, Callable[[ListedRun, float], str]]

COLUMNS: tuple[Column, ...] = (
    ("run", lambda row, _: row.head.run_id),
    ("graph", lambda row, _: row.head.graph),
    ("status", lambda row, _: row.head.status),
    ("why", lambda row, _: _why(row)),
    ("state", lambda row, _: _state(row)),
    ("turn", lambda row, _: "" if row.story is None else str(row.story.turn)),
    ("held by", lambda row, _: row.head.owner or "-"),
    ("age", lambda row, now: roughly(now - row.head.created_at)),
    ("updated", lambda row, now: f"{roughly(now - row.head.updated_at)} ago"),
)
EXTRA: Mapping[str, tuple[Column, ...]] = {
    "time-in-state": (("in state", lambda row, now: _in_state(row.head, now)),),
    "tokens": (("tokens", lambda row, _: "-" if row.head.tokens is None else f"{row.head.tokens:,}"),),
    "cost": (
        (
            "cost",
            lambda row, _: "-" if row.head.cost_micros is None else f"{in_currency(row.head.cost_micros):g}",
        ),
    ),
}
"""Order -> the column with the number that decides it."""
RIGHT = ("turn", "age", "updated", "in state", "tokens", "cost")


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
