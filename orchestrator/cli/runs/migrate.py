"""`orchestrator runs migrate`: migrate stored runs from other versions of a graph to the installed version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from orchestrator.cli.exit import Exit
from orchestrator.cli.load import imported
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.runs.phrase import many, table
from orchestrator.cli.runs.rollback import stand_again
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.cli.runs_option import MigrateOptions
from orchestrator.cli.shipped import SHIPPED
from orchestrator.errors import ConfigError, RunError
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import RunHead, let_go
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.runtime.llm_loop.codec import loop_codec
from orchestrator.runtime.service.recovery import Migration, Recovery

_DIGITS = 12
"""Characters of a fingerprint that are shown."""
_SHORTEST = 4


class OpenRunVersion(NamedTuple):
    """A run that has not ended, and its current version; the version is empty if the run cannot be read."""

    head: RunHead
    fingerprint: str

    @property
    def current(self) -> bool:
        """Whether it is in the shipped version of its graph."""
        graph = SHIPPED.get(self.head.graph)
        return graph is not None and graph.fingerprint == self.fingerprint


def migrate_runs(options: MigrateOptions) -> int:
    """List the versions of the open runs, or migrate runs; exit code 1 if a migration failed."""
    if options.dry == (options.using is not None):
        raise ConfigError("say either --dry-run, which lists, or --using MODULE:FUNCTION, which migrates")
    if options.made is not None and len(options.made) < _SHORTEST:
        raise ConfigError(
            f"--from {shown(options.made)!r} is too short: give at least {_SHORTEST} characters"
        )
    if options.using is None:
        return at_journal(options.journal, lambda store: _list(store, json=options.json))
    change = _checked(imported(options.using, "migration"), options.using)

    async def work(store: OpenStore) -> int:
        chosen = await _chosen(store, options)
        failed = 0
        for one in chosen:
            why = await _migrated(store, one, change)
            failed += why is not None
            _print_change(options, one, why)
        return _summary(options, len(chosen), failed)

    return at_journal(options.journal, work)


# ---- selection ----


async def _flights(store: OpenStore) -> list[OpenRunVersion]:
    heads, _ = await store.heads()
    return [await _flight(store, head) for head in heads if head.status != "ended"]


async def _flight(store: OpenStore, head: RunHead) -> OpenRunVersion:
    """Return the version of a run: the one it was started with, or was migrated to since."""
    if OpenRunVersion(head, head.fingerprint).current:
        return OpenRunVersion(head, head.fingerprint)
    try:
        stored = StoredRun.of(head.run_id, await store.journal.load(head.run_id))
    except RunError:
        return OpenRunVersion(head, "")
    return OpenRunVersion(head, stored.fingerprint)


async def _chosen(store: OpenStore, options: MigrateOptions) -> list[OpenRunVersion]:
    """Return the runs to migrate. Raises ConfigError for a named run that is not one of them."""
    if not options.runs:
        flights = await _flights(store)
        return [one for one in flights if not one.current and not _unfit(one, options.made)]
    named = [await _flight(store, await store.run(name)) for name in options.runs]
    for one in named:
        if why := _unfit(one, options.made):
            raise ConfigError(f"run {one.head.run_id} {why}: nothing was migrated")
    return named


def _unfit(one: OpenRunVersion, made: str | None) -> str:
    """Return why a run cannot be migrated here, or nothing."""
    if one.head.status == "ended":
        return "is over"
    if one.head.graph != LLM_LOOP.name:
        return f"belongs to graph {shown(one.head.graph)!r}, not of {LLM_LOOP.name!r}"
    if one.current:
        return "is in this version already"
    if not one.fingerprint:
        return "cannot be read"
    if made is not None and not one.fingerprint.startswith(made.lower()):
        return f"was made with {one.fingerprint[:_DIGITS]}, not with {shown(made)}"
    return ""


# ---- migration ----


def _checked(function: object, spec: str) -> Callable[[StoredRun], StoredRun]:
    if not callable(function):
        raise ConfigError(f"migration {spec!r} is a {type(function).__name__}; it must be a function")

    def change(stored: StoredRun) -> StoredRun:
        changed = function(stored)
        if not isinstance(changed, StoredRun):
            raise ConfigError(f"{spec} returned a {type(changed).__name__}; it must return the StoredRun")
        return changed

    return change


async def _migrated(
    store: OpenStore, one: OpenRunVersion, change: Callable[[StoredRun], StoredRun]
) -> str | None:
    """Migrate one run; return why it was not changed, or None."""
    ways = [Migration(one.fingerprint, change)]
    recovery = Recovery(store.journal, LLM_LOOP, loop_codec(), "runs migrate", ways)
    try:
        # A migration repeats no call, so it asks no question about programs on other hosts: the resume asks it.
        _, records, lease, _ = await recovery.claim(one.head.run_id, again=True, from_agent=one.head.agent)
    except (ConfigError, RunError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - every error of the function is reported for that run
        return f"the migration raised {type(error).__name__}: {error}"
    try:
        await stand_again(store.journal, lease, records)
    finally:
        await let_go(store.journal, lease)
    return None


# ---- output ----


async def _list(store: OpenStore, *, json: bool) -> int:
    flights = await _flights(store)
    counted = Counter((one.head.graph, one.fingerprint, one.current) for one in flights)
    held = Counter((one.head.graph, one.fingerprint) for one in flights if one.head.owner is not None)
    rows = [
        {
            "graph": graph,
            "fingerprint": made,
            "runs": count,
            "held": held[graph, made],
            "current": current,
        }
        for (graph, made, current), count in counted.items()
    ]
    if json:
        for row in rows:
            say_json(row)
    elif not rows:
        say("no run is in flight")
    else:
        for line in _drawn(rows):
            say(line)
        if any(not row["current"] and row["graph"] == LLM_LOOP.name for row in rows):
            say(f"\nto migrate: {store.command('migrate', '--using', 'MODULE:FUNCTION')}")
    return Exit.COMPLETED


def _drawn(rows: Sequence[dict[str, Any]]) -> list[str]:
    heads = ("graph", "fingerprint", "runs", "held", "version")
    cells = [
        (
            row["graph"],
            row["fingerprint"][:_DIGITS] or "(cannot be read)",
            str(row["runs"]),
            str(row["held"]),
            _version(row),
        )
        for row in rows
    ]
    return table(heads, cells, right=("runs", "held"))


def _version(row: dict[str, Any]) -> str:
    if row["current"]:
        return "this one"
    if row["graph"] == LLM_LOOP.name:
        return "another: needs a migration"
    return "another: migrated in code" if row["graph"] in SHIPPED else "of another program"


def _print_change(options: MigrateOptions, one: OpenRunVersion, why: str | None) -> None:
    if options.json:
        data = {"run_id": one.head.run_id, "from": one.fingerprint, "to": LLM_LOOP.fingerprint}
        say_json(data | {"migrated": why is None, "error": why})
    else:
        became = f"migrated to {LLM_LOOP.fingerprint[:_DIGITS]}" if why is None else f"not migrated: {why}"
        say(shown(f"{one.head.run_id}  {one.fingerprint[:_DIGITS]}  {became}", 900))


def _summary(options: MigrateOptions, chosen: int, failed: int) -> int:
    if not chosen and not options.json:
        say("no run needs a migration")
    if not failed:
        return Exit.COMPLETED
    complain(
        f"{many(failed, 'run')} of {chosen} could not be migrated and {'is' if failed == 1 else 'are'} as before"
    )
    return Exit.FAILED
