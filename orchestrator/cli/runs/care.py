"""`orchestrator runs prune|erase|backup|restore`: remove runs, copy and restore the journal."""

from __future__ import annotations

import time
from pathlib import Path

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs.phrase import many, moment, roughly, seconds_in, size, words
from orchestrator.cli.runs.store import OpenStore, at_journal, journal_file
from orchestrator.errors import ConfigError, RunError
from orchestrator.journal.address import Address
from orchestrator.journal.sqlite import SqliteJournal


def prune_runs(
    *,
    older_than: str | None,
    keep_last: int | None,
    yes: bool,
    vacuum: bool,
    json: bool,
    journal: Address | None,
) -> int:
    """Remove ended runs that meet every condition; without `yes` only print their number.

    With `vacuum` the free space is returned to the file system, unless runs were only counted.
    """
    if vacuum:
        _refuse_server(journal, "return the space of", "VACUUM FULL (autovacuum lets PostgreSQL reuse it)")
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
            await _print_dry(store, before, keep_last or 0, json=json)
            return Exit.COMPLETED
        removed = await store.journal.prune(older_than=before, keep_last=keep_last)
        done = {"removed": removed} if selects else {}
        text = [f"removed {many(removed, 'run')}"] if selects else []
        if vacuum and isinstance(store.journal, SqliteJournal):
            done["returned_bytes"] = returned = await store.journal.vacuum()
            left = size(await store.journal.size())
            text.append(f"returned {size(returned)} to the file system; the journal has {left}")
        say_json(done) if json else say("\n".join(text))
        return Exit.COMPLETED

    return at_journal(journal, work)


async def _print_dry(store: OpenStore, before: float | None, keep: int, *, json: bool) -> None:
    count, oldest = await _to_prune(store, before, keep)
    since = f", the oldest from {moment(oldest)}" if count else ""
    if json:
        say_json({"would_remove": count})
    else:
        say(f"{many(count, 'ended run')} to remove{since}; nothing was removed: add --yes")


async def _to_prune(store: OpenStore, before: float | None, keep: int) -> tuple[int, float]:
    """Return how many runs a prune would remove, and the time of the oldest one's last record."""
    heads, _ = await store.heads()
    ended = sorted((head for head in heads if head.status == "ended"), key=lambda head: -head.updated_at)
    doomed = [
        head.updated_at
        for head in ended[keep:]
        if head.owner is None and (before is None or head.updated_at < before)
    ]
    return len(doomed), min(doomed, default=0.0)


def erase_run(name: str, *, yes: bool, json: bool, journal: Address | None) -> int:
    """Remove one run in any state that has no owner."""

    async def work(store: OpenStore) -> int:
        head = await store.run(name)
        if not yes:
            age = roughly(time.time() - head.created_at)
            raise ConfigError(
                f"run {head.run_id} ({head.graph}, {head.status}, {age} old) was not erased: it cannot be brought "
                f"back; `{store.command('erase', head.run_id, '--yes')}` does it"
            )
        await store.journal.erase(head.run_id)
        if json:
            say_json({"erased": head.run_id})
        else:
            say(f"erased run {shown(head.run_id)}; copies made by `runs backup` still have it")
        return Exit.COMPLETED

    return at_journal(journal, work)


def back_up(target: Path, *, json: bool, journal: Address | None) -> int:
    """Write a checked copy of the journal while its runs continue."""
    _refuse_server(journal, "back up", "pg_dump or pg_basebackup")
    at_journal(journal, lambda store: _written(store, target))
    written = target.stat().st_size
    if json:
        say_json({"backup": str(target.absolute()), "bytes": written})
    else:
        say(f"{target}: {size(written)}, every run proved; to use it:")
        say(f"  {words('runs', 'restore', str(target), '--journal', 'NEW.db')}")
    return Exit.COMPLETED


async def _written(store: OpenStore, target: Path) -> None:
    if isinstance(store.journal, SqliteJournal):
        await store.journal.backup(target)


def _refuse_server(given: Address | None, what: str, by: str) -> Path:
    """Return the journal's file. Raises ConfigError for a server, which has its own backups."""
    place = journal_file(given)
    if isinstance(place, Path):
        return place
    raise ConfigError(
        f"journal {place} is a server's database: {what} it with {by}, then `orchestrator doctor`"
    )


def restore_journal(source: Path, *, json: bool, journal: Address | None) -> int:
    """Create a journal from a backup. Raises ConfigError if the journal exists."""
    path = _refuse_server(journal, "restore", "pg_restore, or the server's own backups")
    try:
        SqliteJournal.restore(source, path)
    except RunError as error:
        raise ConfigError(str(error)) from error
    if json:
        say_json({"journal": str(path), "bytes": path.stat().st_size})
        return Exit.COMPLETED
    named = ("--journal", str(journal)) if journal is not None else ()
    say(f"{path}: {size(path.stat().st_size)}, every run proved")
    say(f"what is in it: {words('runs', 'list', *named)}")
    return Exit.COMPLETED
