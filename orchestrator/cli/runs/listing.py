"""`orchestrator runs list`: the recorded runs that meet conditions, in a chosen order.

The journal's index of run heads has every column but the error, so no record is read, except of runs that wait and have
an answer, and the last ones of runs that failed: a listing of thousands of runs takes a moment.
Damage to the records of a run is reported by `runs show` and `doctor`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.loop import on_signal
from orchestrator.cli.output import is_terminal, reader_is_gone, say, say_json, shown
from orchestrator.cli.runs.phrase import moment, of_status, roughly, seconds_in, table, tags_in
from orchestrator.cli.runs.store import WAITS_FOR_AGENT, OpenStore, at_journal, head_json, head_reason
from orchestrator.cli.spread import spread
from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import PARKED, RunHead
from orchestrator.runtime.runs.listing import RunFilter, read_page, short_id, status_name
from orchestrator.runtime.runs.outline import RunFailure, read_outlines
from orchestrator_guards.money import amount


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """Conditions on runs; a run must meet each."""

    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Runs of this agent.")] = None
    graph: Annotated[
        str | None, typer.Option("--graph", "--machine", metavar="NAME", help="Runs of this machine.")
    ] = None
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="open, parked or ended.")] = None
    state: Annotated[str | None, typer.Option(metavar="STATE", help="Runs in this state.")] = None
    outcome: Annotated[str | None, typer.Option(metavar="NAME", help="Runs that ended so.")] = None
    reason: Annotated[str | None, typer.Option(metavar="NAME", help="Why they ended or parked.")] = None
    tags: given.Tags = ()
    waiting: Annotated[bool, typer.Option("--waiting", help="Runs that wait for a person.")] = False
    waiting_for: Annotated[
        str | None, typer.Option(metavar="TOOL", help="Runs that wait for a call of this tool.")
    ] = None
    older_than: given.OlderThan = None
    started_within: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Runs that started in the last 90s, 15m, 12h, 30d.")
    ] = None
    search: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="Runs that have each word, in any case: id, machine, agent, tags, outcome, reason, or the tools they"
            " wait for.",
        ),
    ] = None

    @property
    def conditions(self) -> RunFilter:
        """The conditions for the library. Raises ConfigError for a text that is no tag or no duration."""
        return {
            "agent": self.agent,
            "machine": self.graph,
            "status": self.status,
            "state": self.state,
            "outcome": self.outcome,
            "reason": self.reason,
            "tag": tags_in(self.tags) or None,
            "waiting": self.waiting_for or (True if self.waiting else None),
            "older_than": None if self.older_than is None else time.time() - seconds_in(self.older_than),
            "started_since": (
                None if self.started_within is None else time.time() - seconds_in(self.started_within)
            ),
            "search": self.search,
        }


WATCH = 2.0
"""Seconds between two listings of --watch."""


@dataclass(frozen=True, kw_only=True)
class ListOptions(FilterOptions, given.JournalOptions):
    """The command line of `runs list`."""

    sort: Annotated[
        Literal["newest", "age", "updated", "time-in-state", "tokens", "cost"],
        typer.Option(help="Order: newest first, or the greatest age, time in state, tokens or cost first."),
    ] = "newest"
    limit: Annotated[int, typer.Option(metavar="N", help="How many; 0 is all.")] = 20
    after: Annotated[
        str | None, typer.Option(metavar="RUN", help="Continue after this run in the same order.")
    ] = None
    watch: Annotated[bool, typer.Option("--watch", help="Print the list every 2 s until Ctrl-C.")] = False
    all: Annotated[bool, typer.Option("--all", help="Also the runs that represent engines.")] = False


@spread
def list_runs(options: ListOptions) -> int:
    """List runs; --json prints one object a line."""
    if options.limit < 0:
        raise ConfigError(f"limit is {options.limit}; it must be 0 (all) or more")
    if options.watch and options.json:
        raise ConfigError(
            "--watch prints a table for a person; --json prints the runs once: give one of them"
        )

    async def work(store: OpenStore) -> str:
        return await (_watch(store, options) if options.watch else _list_once(store, options))

    # After the readable runs, the unreadable ones are an error.
    if problem := at_journal(options.journal, work, only_reads=True):
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
    unread = await _waiting_for_agents(store, page.runs)
    failed = [head for head in page.runs if head.outcome == "failed"]
    outlines = await read_outlines(store.journal, failed) if failed else {}
    errors = {run_id: outline.failure for run_id, outline in outlines.items() if outline.failure}
    if options.json:
        for head in page.runs:
            error = errors.get(head.run_id)
            more = {"outcome": head.outcome or None, "state": head.state or None}
            waits = {"waits_for_agent": head.run_id in unread, "error": error and error.without_content}
            say_json({**head_json(head), **more, **waits})
    else:
        known = bool(page.runs) or bool((await read_page(store.journal, limit=1, engines=True)).runs)
        _print(store, options, page.runs, unread, errors, known=known, more=page.more)
    return page.damage


async def _waiting_for_agents(store: OpenStore, found: Iterable[RunHead]) -> frozenset[str]:
    """Return the runs whose answer no live engine can read."""
    asked = [head for head in found if head.status == PARKED and head.waiting and head.owner is None]
    if not asked:
        return frozenset()
    from orchestrator.engines.engine_directory import engines, waits_for_agent  # only if a run waits

    living = await engines(store.journal)
    return frozenset([head.run_id for head in asked if await waits_for_agent(store.journal, head, living)])


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


def _print(
    store: OpenStore,
    options: ListOptions,
    heads: list[RunHead],
    unread: Container[str],
    errors: Mapping[str, RunFailure],
    *,
    known: bool,
    more: bool,
) -> None:
    if not heads:
        say("no run fits" if known else "no run yet")
        return
    now = time.time()
    rows = [_row(head, options.sort, now) for head in heads]
    for head, row in zip(heads, rows, strict=True):
        if head.run_id in unread:
            row["why"] = WAITS_FOR_AGENT
        if errors:
            error = errors.get(head.run_id)
            row["error"] = ", ".join(filter(None, (error.facts, error.place))) if error else ""
    right = ("age", "updated", "in state", "tokens", "cost")
    paints = [of_status(status_name(head)) for head in heads]
    cells = [tuple(row.values()) for row in rows]
    for line in table(tuple(rows[0]), cells, right=right, paints=paints, painted_heads=("status", "why")):
        say(line)
    if any(row["run"] != head.run_id for row, head in zip(rows, heads, strict=True)):
        say("  ids are cut here: every command takes the first characters of an id, at least 4")
    if more:
        say(f"  … and more: --limit 0 shows all, --after {shown(heads[-1].run_id)} the next")
    asked = [head for head in heads if head.waiting and head.status != "ended" and head.run_id not in unread]
    if asked:
        say(f"\nwaiting for you: {store.command('show', asked[0].run_id)}")


def _row(head: RunHead, sort: str, now: float) -> dict[str, str]:
    """Return the columns of a run, and the one with the number that decides the order."""
    why = head_reason(head)
    if head.status == "ended":
        why = head.outcome if head.reason in ("", "none") else f"{head.outcome} ({head.reason})"
    row = {
        "run": short_id(head.run_id) if is_terminal() else head.run_id,
        "agent": head.agent or "-",
        "graph": head.graph,
        "status": head.status,
        "why": why,
        "state": head.state or "-",
        "held by": head.owner or "-",
        "age": roughly(now - head.created_at),
        "updated": f"{roughly(now - head.updated_at)} ago",
    }
    match sort:
        case "time-in-state":
            since = head.state_since or head.created_at
            row["in state"] = "" if head.status == "ended" else roughly(now - since)
        case "tokens":
            row["tokens"] = "-" if head.tokens is None else f"{head.tokens:,}"
        case "cost":
            row["cost"] = "-" if head.cost_micros is None else amount(head.cost_micros, head.currency)
    return row
