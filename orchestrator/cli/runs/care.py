"""Care of stored runs: prune and erase them, back up and restore the journal, migrate runs, roll files back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.launch import Launch
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.runs.phrase import many, moment, roughly, seconds_in, size, table, words
from orchestrator.cli.runs.run_service import refuse_approval
from orchestrator.cli.runs.store import OpenStore, at_journal, existing, journal_file
from orchestrator.cli.shipped import SHIPPED
from orchestrator.cli.spread import spread
from orchestrator.cli.trust.consent import is_trusted_run
from orchestrator.errors import ConfigError, RunError
from orchestrator.files.named_object import imported
from orchestrator.files.rollback import Change, RollbackStack, UndoReport, plan_undo
from orchestrator.journal.address import Address
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import (
    ENDING_KINDS,
    PARKING_KINDS,
    Draft,
    Journal,
    Lease,
    Record,
    RunHead,
    let_go,
    write_records,
)
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.runtime.llm_loop.run_record import loop_codec
from orchestrator.runtime.runs.listing import read_page
from orchestrator.runtime.service.recovery import Migration, Recovery


@spread
def prune(
    *,
    older_than: given.OlderThan = None,
    keep_last: Annotated[int | None, typer.Option(metavar="N", help="All but the N written to last.")] = None,
    yes: given.Yes = False,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Return the space of removed runs to the file system (SQLite).")
    ] = False,
    at: given.JournalOptions,
) -> int:
    """Remove ended runs that meet every condition given.

    Without --yes the command counts them. --vacuum returns the space of removed runs to the file system, also of
    those that were removed before.
    """
    if vacuum:
        _refuse_server(at.journal, "return the space of", "VACUUM FULL (autovacuum lets PostgreSQL reuse it)")
    if older_than is None and keep_last is None and not vacuum:
        raise ConfigError(
            "nothing was removed: say which runs with --older-than 30d or --keep-last 100, or both"
        )
    if keep_last is not None and keep_last < 0:
        raise ConfigError(f"keep-last is {keep_last}; it must be 0 or more")
    before = None if older_than is None else time.time() - seconds_in(older_than)
    selects = older_than is not None or keep_last is not None

    async def work(store: OpenStore) -> int:
        if selects and not yes:
            heads, _ = await store.heads()
            ended = sorted((one for one in heads if one.status == "ended"), key=lambda one: -one.updated_at)
            doomed = [
                one.updated_at
                for one in ended[keep_last or 0 :]
                if one.owner is None and (before is None or one.updated_at < before)
            ]
            if at.json:
                say_json({"would_remove": len(doomed)})
            else:
                since = f", the oldest from {moment(min(doomed))}" if doomed else ""
                say(f"{many(len(doomed), 'ended run')} to remove{since}; nothing was removed: add --yes")
            return Exit.COMPLETED
        removed = await store.journal.prune(older_than=before, keep_last=keep_last)
        done = {"removed": removed} if selects else {}
        text = [f"removed {many(removed, 'run')}"] if selects else []
        if vacuum and isinstance(store.journal, SqliteJournal):
            done["returned_bytes"] = returned = await store.journal.vacuum()
            left = size(await store.journal.size())
            text.append(f"returned {size(returned)} to the file system; the journal has {left}")
        say_json(done) if at.json else say("\n".join(text))
        return Exit.COMPLETED

    return at_journal(at.journal, work)


@spread
def erase(run: given.RunId, *, yes: given.Yes = False, at: given.JournalOptions) -> int:
    """Remove one run permanently, from file and log."""

    async def work(store: OpenStore) -> int:
        head = await store.run(run)
        if not yes:
            age = roughly(time.time() - head.created_at)
            raise ConfigError(
                f"run {head.run_id} ({head.graph}, {head.status}, {age} old) was not erased: it cannot be brought "
                f"back; `{store.command('erase', head.run_id, '--yes')}` does it"
            )
        await store.journal.erase(head.run_id)
        if at.json:
            say_json({"erased": head.run_id})
        else:
            say(f"erased run {shown(head.run_id)}; copies made by `runs backup` still have it")
        return Exit.COMPLETED

    return at_journal(at.journal, work)


@spread
def backup(file: given.BackupFile, *, at: given.JournalOptions) -> int:
    """Write a checked copy of the journal; runs continue meanwhile."""
    _refuse_server(at.journal, "back up", "pg_dump or pg_basebackup")

    async def work(store: OpenStore) -> None:
        if isinstance(store.journal, SqliteJournal):
            await store.journal.backup(file)

    at_journal(at.journal, work)
    written = file.stat().st_size
    if at.json:
        say_json({"backup": str(file.absolute()), "bytes": written})
    else:
        say(f"{file}: {size(written)}, every run proved; to use it:")
        say(f"  {words('runs', 'restore', str(file), '--journal', 'NEW.db')}")
    return Exit.COMPLETED


def _refuse_server(given: Address | None, what: str, by: str) -> Path:
    """Return the journal's file. Raises ConfigError for a server, which has its own backups."""
    place = journal_file(given)
    if isinstance(place, Path):
        return place
    raise ConfigError(
        f"journal {place} is a server's database: {what} it with {by}, then `orchestrator doctor`"
    )


@spread
def restore(file: given.BackupFile, *, at: given.JournalOptions) -> int:
    """Restore a journal from a backup; it must not exist yet."""
    path = _refuse_server(at.journal, "restore", "pg_restore, or the server's own backups")
    try:
        SqliteJournal.restore(file, path)
    except RunError as error:
        raise ConfigError(str(error)) from error
    if at.json:
        say_json({"journal": str(path), "bytes": path.stat().st_size})
        return Exit.COMPLETED
    named = ("--journal", str(at.journal)) if at.journal is not None else ()
    say(f"{path}: {size(path.stat().st_size)}, every run proved")
    say(f"what is in it: {words('runs', 'list', *named)}")
    return Exit.COMPLETED


_BACK = {
    "create": "remove {path}, which it made",
    "edit": "put back {path} as it was before",
    "delete": "put back {path}, which it removed",
}
"""Kind of change -> the effect of its undo."""


@dataclass(frozen=True, kw_only=True)
class RollbackOptions(given.JournalOptions):
    """The command line of `runs rollback`."""

    run: given.RunId
    root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the files. Default: the one the run was started in."),
    ] = None
    step: Annotated[str | None, typer.Option(metavar="S", help="Only the changes of this step.")] = None
    yes: given.Yes = False


@spread
def rollback(options: RollbackOptions) -> int:
    """Undo the file changes of a run, newest first.

    Without --yes the command lists them. Changes that others have made since are kept.
    """

    async def work(store: OpenStore) -> int:
        head = await store.run(options.run)
        refuse_approval(store, head)
        records = await store.journal.load(head.run_id)
        changes = plan_undo(records, step=options.step)
        if not changes:
            if options.json:
                say_json({"run_id": head.run_id, "undone": [], "conflicts": []})
            else:
                of = f" of step {options.step!r}" if options.step is not None else ""
                say(f"run {shown(head.run_id)} has no change to a file{of} that could be undone")
            return Exit.COMPLETED
        root = _root(options, head, records)
        if not options.yes:
            _print_plan(store, options, head, root, changes)
            return Exit.COMPLETED
        journal = store.journal
        lease = await journal.claim(head.run_id, f"runs rollback {uuid4().hex[:8]}")
        try:
            records = await journal.load(head.run_id)  # this process is the only writer from here on
            try:
                stack = RollbackStack.recover(records, journal, lease, root)
                undone = await stack.undo(step=options.step)
            finally:
                await stand_again(journal, lease, records)
        finally:
            await let_go(journal, lease)
        return _print_undone(options, head, undone)

    return at_journal(options.journal, work)


async def stand_again(journal: Journal, lease: Lease, records: Sequence[Record]) -> None:
    """Append the last parking or ending record again if other records follow it."""
    last = records[-1]
    if last.kind not in ENDING_KINDS | PARKING_KINDS or lease.seq == last.seq:
        return
    await write_records(journal, lease, Draft(last.kind, last.body))


def _root(options: RollbackOptions, head: RunHead, records: Sequence[Record]) -> Path:
    """Return the folder of the paths. Raises ConfigError: in a wrong one every change would count as undone."""
    started = Launch.of(records[0].body).cwd
    if options.root is None and not started:
        raise ConfigError(
            f"run {head.run_id} does not say which folder its files are in: give it with --root DIR"
        )
    if options.root is None and not is_trusted_run(records[0].body.get("launch"), existing(options.journal)):
        raise ConfigError(
            f"run {head.run_id} was not started by you on this machine, and says that its files are in "
            f"{shown(started)}: give the folder with --root DIR"
        )
    root = options.root or Path(started)
    if not root.is_dir():
        raise ConfigError(f"{root} is no folder: --root names the one that the files of the run are in")
    return root.absolute()


# ---- output ----


def _print_plan(
    store: OpenStore, options: RollbackOptions, head: RunHead, root: Path, changes: Sequence[Change]
) -> None:
    if options.json:
        say_json({"run_id": head.run_id, "root": str(root), "would_undo": [asdict(one) for one in changes]})
        return
    say(f"{many(len(changes), 'change')} of run {shown(head.run_id)} to undo below {shown(str(root))}:")
    for change in changes:
        doubt = "" if change.done else " (in doubt: it may not have happened)"
        of_step = f"step {change.step}  " if change.step else ""
        say(shown(f"  {of_step}{_BACK[change.kind.value].format(path=change.path)}{doubt}", 600))
    step = () if options.step is None else ("--step", options.step)
    named = () if options.root is None else ("--root", str(options.root))
    say("nothing was touched; to do it:")
    say(f"  {store.command('rollback', head.run_id, *named, *step, '--yes')}")


def _print_undone(options: RollbackOptions, head: RunHead, undone: UndoReport) -> int:
    if options.json:
        plain = asdict(undone)
        say_json({"run_id": head.run_id, "undone": plain["changes"], "conflicts": plain["conflicts"]})
    else:
        say(f"{many(len(undone.changes), 'change')} undone, {many(len(undone.conflicts), 'conflict')}")
        for change in undone.changes:
            say(f"  undone    {change.kind.value:<6}  {shown(change.path, 300)}")
        for conflict in undone.conflicts:
            say(f"  conflict  {shown(f'{conflict}; it was kept', 600)}")
    if not undone.conflicts:
        return Exit.COMPLETED
    complain(
        f"{many(len(undone.conflicts), 'file')} of run {head.run_id} changed from outside and kept as it is: "
        f"{undone.conflicts[0]}"
    )
    return Exit.FAILED


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


@dataclass(frozen=True, kw_only=True)
class MigrateOptions(given.JournalOptions):
    """The command line of `runs migrate`."""

    runs: Annotated[
        tuple[str, ...], typer.Argument(metavar="RUN", help="Only these runs.", show_default=False)
    ] = ()
    using: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Takes a journal.stored_run.StoredRun and returns it as it fits this version.",
        ),
    ] = None
    made: Annotated[
        str | None,
        typer.Option("--from", metavar="FINGERPRINT", help="Only runs of this version, or its beginning."),
    ] = None
    dry: Annotated[bool, typer.Option("--dry-run", help="Only list the versions that runs are in.")] = False


@spread
def migrate(options: MigrateOptions) -> int:
    """Migrate open runs of older versions of a graph.

    The command does not resume them.
    """
    if options.dry == (options.using is not None):
        raise ConfigError("say either --dry-run, which lists, or --using MODULE:FUNCTION, which migrates")
    if options.made is not None and len(options.made) < _SHORTEST:
        raise ConfigError(
            f"--from {shown(options.made)!r} is too short: give at least {_SHORTEST} characters"
        )
    if options.using is None:
        return at_journal(options.journal, lambda store: _list(store, json=options.json))
    using, function = options.using, imported(options.using, "migration")
    if not callable(function):
        raise ConfigError(f"migration {using!r} is a {type(function).__name__}; it must be a function")

    def change(stored: StoredRun) -> StoredRun:
        changed = function(stored)
        if not isinstance(changed, StoredRun):
            raise ConfigError(f"{using} returned a {type(changed).__name__}; it must return the StoredRun")
        return changed

    async def work(store: OpenStore) -> int:
        chosen = await _chosen(store, options)
        failed = 0
        for one in chosen:
            why = await _migrated(store, one, change)
            failed += why is not None
            if options.json:
                data = {"run_id": one.head.run_id, "from": one.fingerprint, "to": LLM_LOOP.fingerprint}
                say_json(data | {"migrated": why is None, "error": why})
            else:
                became = (
                    f"not migrated: {why}"
                    if why is not None
                    else f"migrated to {LLM_LOOP.fingerprint[:_DIGITS]}"
                )
                say(shown(f"{one.head.run_id}  {one.fingerprint[:_DIGITS]}  {became}", 900))
        if not chosen and not options.json:
            say("no run needs a migration")
        if not failed:
            return Exit.COMPLETED
        are = "is" if failed == 1 else "are"
        complain(f"{many(failed, 'run')} of {len(chosen)} could not be migrated and {are} as before")
        return Exit.FAILED

    return at_journal(options.journal, work)


# ---- selection ----


async def _flights(store: OpenStore) -> list[OpenRunVersion]:
    page = await read_page(store.journal, "age")
    return [await _flight(store, head) for head in page.runs if head.status != "ended"]


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
    rows: list[dict[str, Any]] = [
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
        for line in table(heads, cells, right=("runs", "held")):
            say(line)
        if any(not row["current"] and row["graph"] == LLM_LOOP.name for row in rows):
            say(f"\nto migrate: {store.command('migrate', '--using', 'MODULE:FUNCTION')}")
    return Exit.COMPLETED


def _version(row: dict[str, Any]) -> str:
    if row["current"]:
        return "this one"
    if row["graph"] == LLM_LOOP.name:
        return "another: needs a migration"
    return "another: migrated in code" if row["graph"] in SHIPPED else "of another program"
