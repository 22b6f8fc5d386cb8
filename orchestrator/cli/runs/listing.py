"""`orchestrator runs list`: the recorded runs, in a chosen order.

The journal's index of run heads has every column, so no record is read: a listing of thousands of runs takes a moment.
Damage to the records of a run is reported by `runs show` and `doctor`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.cli.exit import Exit
from orchestrator.cli.loop import on_signal
from orchestrator.cli.output import reader_is_gone, say, say_json, shown
from orchestrator.cli.runs.phrase import moment, roughly, table
from orchestrator.cli.runs.position import head_reason
from orchestrator.cli.runs.store import OpenStore, at_journal, head_json
from orchestrator.cli.runs_group import ListOptions
from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.runs.listing import read_page
from orchestrator_guards.money import in_currency

WATCH = 2.0
"""Seconds between two listings of --watch."""


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
    page = await read_page(
        store.journal,
        options.sort.replace("-", "_"),
        options.limit or None,
        None if options.after is None else (await store.run(options.after)).run_id,
        engines=options.all,
        **options.conditions,
    )
    if options.json:
        for head in page.runs:
            say_json(_plain(head))
    else:
        known = bool(page.runs) or bool((await read_page(store.journal, limit=1, engines=True)).runs)
        _print(store, options, page.runs, known=known, more=page.more)
    return page.damage


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


def _print(store: OpenStore, options: ListOptions, heads: list[RunHead], *, known: bool, more: bool) -> None:
    if not heads:
        say("no run fits" if known else "no run yet")
        return
    now = time.time()
    columns = [*COLUMNS, *EXTRA.get(options.sort, ())]
    cells = [tuple(cell(head, now) for _, cell in columns) for head in heads]
    for line in table(tuple(name for name, _ in columns), cells, right=RIGHT):
        say(line)
    if more:
        say(f"  … and more: --limit 0 shows all, --after {shown(heads[-1].run_id)} the next")
    if (asked := next((head for head in heads if head.waiting and head.status != "ended"), None)) is not None:
        say(f"\nwaiting for you: {store.command('show', asked.run_id)}")


def _why(head: RunHead) -> str:
    if head.status != "ended":
        return head_reason(head)
    return head.outcome if head.reason in ("", "none") else f"{head.outcome} ({head.reason})"


def _in_state(head: RunHead, now: float) -> str:
    return "" if head.status == "ended" else roughly(now - (head.state_since or head.created_at))


def _cost(head: RunHead) -> str:
    return "-" if head.cost_micros is None else f"{in_currency(head.cost_micros):g}"


Column = tuple[str, Callable[[RunHead, float], str]]

COLUMNS: tuple[Column, ...] = (
    ("run", lambda head, _: head.run_id),
    ("agent", lambda head, _: head.agent or "-"),
    ("graph", lambda head, _: head.graph),
    ("status", lambda head, _: head.status),
    ("why", lambda head, _: _why(head)),
    ("state", lambda head, _: head.state or "-"),
    ("held by", lambda head, _: head.owner or "-"),
    ("age", lambda head, now: roughly(now - head.created_at)),
    ("updated", lambda head, now: f"{roughly(now - head.updated_at)} ago"),
)
EXTRA: Mapping[str, tuple[Column, ...]] = {
    "time-in-state": (("in state", _in_state),),
    "tokens": (("tokens", lambda head, _: "-" if head.tokens is None else f"{head.tokens:,}"),),
    "cost": (("cost", lambda head, _: _cost(head)),),
}
"""Order -> the column with the number that decides it."""
RIGHT = ("age", "updated", "in state", "tokens", "cost")


def _plain(head: RunHead) -> dict[str, Any]:
    return {**head_json(head), "outcome": head.outcome or None, "state": head.state or None}
