"""`orchestrator doctor`: the journal and its open runs, the isolation of code of models, and tests of backups."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.rlm import isolation
from orchestrator.cli.runs.phrase import heading, many, roughly, size, table
from orchestrator.cli.runs.store import OpenStore, existing, head_json, head_reason, holder, journal_file
from orchestrator.cli.spread import spread
from orchestrator.engines.process import garbage_collection_setting, worker_setting
from orchestrator.errors import ConfigError, JournalError, RunError
from orchestrator.journal.address import Address, JournalAddress
from orchestrator.journal.difference import JournalDifference, difference
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.journal.sqlite import SqliteHealth, SqliteJournal
from orchestrator.journal.sqlite.place import SIZE, Reserve
from orchestrator.kernel.journal import ENGINE, Journal, RunHead
from orchestrator.repl import Isolation
from orchestrator.runtime.runs.listing import JournalCheck, record_check

if TYPE_CHECKING:
    from orchestrator.journal.postgres.read import PostgresHealth as ServerHealth

PRIVATE = 0o600
LEAST_FREE = 100 * 1024 * 1024
"""Free bytes that a disk should have: if the journal cannot be written, runs end."""


@dataclass(slots=True)
class DoctorReport:
    """The findings about a journal. `health` is None if it could not be opened."""

    path: Path
    mode: int
    sizes: dict[str, int]
    health: SqliteHealth | None = None
    problems: list[str] = field(default_factory=list)
    unkept: str = ""
    """Why the verdict could not be kept in the journal."""
    isolation: Isolation | str = ""
    """The isolation of a worker for models' code, or why no worker starts. Not a problem: most runs need none."""


@spread
def doctor(
    at: given.JournalOptions,
    *,
    salvage: Annotated[
        Path | None,
        typer.Option(
            "--salvage", metavar="NEW.db", help="Write the readable part of a damaged journal to a new one."
        ),
    ] = None,
    restore: given.BackupToTest = None,
) -> int:
    """Check the journal: file, store, every chain, open runs, disk.

    The exit code is 1 when there are problems. The command also shows how code of models is isolated on this machine
    (`orchestrator rlm isolation`).
    """
    if salvage is not None and restore is not None:
        raise ConfigError("--salvage and --restore are two commands: give one of them")
    if restore is not None:
        return restore_drill(restore, **vars(at))
    if salvage is not None:
        return salvage_journal(salvage, **vars(at))
    return examine_journal(**vars(at))


def examine_journal(*, json: bool, journal: Address | None) -> int:
    """Check the whole journal and print the findings; exit code 1 when there are problems."""
    try:
        path = existing(journal)
    except ConfigError:
        if not json:  # the findings that need no journal
            for line in _code_of_models(isolation.examined()):
                say(line)
        raise
    if not isinstance(path, Path):
        return examine_server(path, json=json, given=journal)
    found = DoctorReport(path, stat.S_IMODE(path.stat().st_mode), _sizes(path))

    async def examine() -> None:
        """Check the journal while a worker for code of models starts, and keep the verdict in it."""
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(isolation.probed())
            try:
                async with SqliteJournal(found.path, operator=True) as opened:
                    found.health = await opened.check()
                    found.problems += [*found.health.problems, *_faults(found)]
                    found.unkept = await _keep(opened, found.health, found.problems)
                found.sizes = _sizes(found.path)
            except JournalError as error:  # it cannot be opened or read
                found.problems += [str(error), *_faults(found)]
        found.isolation = worker.result()

    asyncio.run(examine())
    if json:
        say_json(_plain(found))
    else:
        for line in _lines(found, SqliteJournal(path), journal):
            say(line)
    return Exit.FAILED if found.problems else Exit.COMPLETED


def salvage_journal(target: Path, *, json: bool, journal: Address | None) -> int:
    """Write the readable part of a damaged journal to a new one, and print the consequences."""
    path = existing(journal)
    if not isinstance(path, Path):
        raise ConfigError(f"journal {path} is a server's database: restore it with the server's own backups")
    try:
        SqliteJournal.salvage(path, target)
    except RunError as error:
        raise ConfigError(str(error)) from error

    async def check() -> SqliteHealth:
        async with SqliteJournal(target, operator=True) as salvaged:
            return await salvaged.check()

    health = asyncio.run(check())
    if json:
        say_json({"journal": str(target.absolute()), "runs": health.runs, "records": health.records})
        return Exit.COMPLETED
    say(f"{target}: {many(health.runs, 'run')}, {many(health.records, 'record')}, every chain proved")
    say(
        "What was recorded after them is lost, and it may have had effects: a run that is resumed repeats them."
    )
    for line in open_runs(health, OpenStore(SqliteJournal(target), target)):
        say(line)
    return Exit.COMPLETED


async def _keep(journal: Journal, health: SqliteHealth | ServerHealth, problems: list[str]) -> str:
    """Keep the verdict in the journal, for the console; return why that is not possible, or ""."""
    try:
        await record_check(journal, JournalCheck.made(health.runs, health.records, problems))
    except RunError as error:
        return str(error)
    return ""


def _sizes(path: Path) -> dict[str, int]:
    """Return the bytes of the file, of its log and of the blobs beside it."""
    log, blobs = (path.with_name(path.name + suffix) for suffix in ("-wal", "-blobs"))
    stored = [file.stat().st_size for file in blobs.iterdir() if file.is_file()] if blobs.is_dir() else []
    return {
        "db": path.stat().st_size,
        "wal": log.stat().st_size if log.exists() else 0,
        "blobs": sum(stored),
    }


def _faults(found: DoctorReport) -> Iterator[str]:
    """Yield the problems of the file and its folder."""
    if found.mode & ~PRIVATE:
        yield f"{found.path} has mode {found.mode:04o}, others may read it: chmod 600 {found.path}"
    if found.health is not None and found.health.free < LEAST_FREE:
        yield f"the disk of {found.path} has {size(found.health.free)} left; below {size(LEAST_FREE)} is too little"


def _lines(found: DoctorReport, journal: SqliteJournal, given: Address | None) -> Iterator[str]:
    health, sizes = found.health, found.sizes
    yield heading(f"journal {found.path}")
    yield f"  mode      {found.mode:04o}"
    yield f"  size      {size(sizes['db'])}, log {size(sizes['wal'])}, blobs {size(sizes['blobs'])}"
    if health is not None:
        left = Reserve(found.path).left()
        reserve = "none" if left is None else f"{size(left)} of {size(SIZE)}"
        yield f"  disk      {size(health.free)} free; reserve for operators: {reserve}"
        yield f"  store     version {health.version}, SQLite {health.sqlite}"
        yield f"  pragmas   {', '.join(f'{name}={value}' for name, value in health.pragmas.items())}"
        state = "every chain proved" if health.ok else "not everything could be proved"
        yield f"  holds     {many(health.runs, 'run')}, {many(health.records, 'record')}: {state}"
        yield from _unkept(found.unkept)
        yield from open_runs(health, OpenStore(journal, given))
    yield ""
    yield from _code_of_models(found.isolation)
    yield from interpreter()
    yield from judged(found.problems)


def judged(problems: list[str], well: str = "healthy") -> Iterator[str]:
    """Yield the problems; `well` if there are none."""
    yield ""
    if not problems:
        yield well
        return
    yield heading(many(len(problems), "problem"))
    for problem in problems:
        yield f"  - {shown(problem, 600)}"


def _unkept(why: str) -> Iterator[str]:
    if why:
        yield f"  verdict   not kept for the console: {shown(why, 300)}"


def _code_of_models(found: Isolation | str) -> Iterator[str]:
    yield heading("code of models")
    yield from isolation.lines(found)


def interpreter() -> Iterator[str]:
    """Yield the interpreter and its garbage collection, and the setting of a process with thousands of runs."""
    yield ""
    yield heading("python")
    yield f"  this process  {garbage_collection_setting()}"
    yield f"  a worker      sets {worker_setting()}; see `orchestrator docs workers`, Garbage collection"


def not_ended(health: SqliteHealth | ServerHealth) -> list[RunHead]:
    """Return the runs that have not ended, without those that represent engines: `operate status` shows these."""
    return [head for head in health.open if head.graph != ENGINE]


def open_runs(health: SqliteHealth | ServerHealth, store: OpenStore | None = None) -> Iterator[str]:
    """List the runs that have not ended; `store` is for the commands that show them."""
    found = not_ended(health)
    if not found:
        yield "  no run is open or parked"
        return
    now = time.time()
    rows = [
        (
            head.run_id,
            head.graph,
            head.status,
            head_reason(head),
            holder(head) or "-",
            f"{roughly(now - head.updated_at)} ago",
        )
        for head in found
    ]
    yield ""
    yield heading(f"not ended ({len(rows):,})")
    yield from table(("run", "graph", "status", "why", "held by", "updated"), rows, right=("updated",))
    if store is not None:
        yield f"  more: {store.command('show', 'RUN')}"


def _plain(found: DoctorReport) -> dict[str, Any]:
    data: dict[str, Any] = {
        "journal": str(found.path),
        "exists": True,
        "mode": f"{found.mode:04o}",
        "sizes": found.sizes,
        "ok": not found.problems,
        "problems": found.problems,
        "isolation": isolation.plain(found.isolation),
        "python": garbage_collection_setting(),
    }
    return data | _plain_health(found.health, ("version", "sqlite", "pragmas", "runs", "records", "free"))


def _plain_health(health: SqliteHealth | ServerHealth | None, names: Sequence[str]) -> dict[str, Any]:
    """Return these members of what a check found, and the runs that have not ended."""
    if health is None:
        return {}
    data = {name: getattr(health, name) for name in names}
    return data | {"open": [head_json(head) for head in not_ended(health)]}


# ---- a server's journal ----


def examine_server(address: JournalAddress, *, json: bool, given: Address | None) -> int:
    """Check a journal on a server, whose disk and files are not known here."""
    journal = journal_at(address, only_reads=True)
    problems: list[str] = []
    health: ServerHealth | None = None

    async def checked() -> tuple[ServerHealth, str]:
        async with journal:
            found = cast("ServerHealth", await journal.check())
        try:
            async with journal_at(address, create=False) as writable:
                return found, await _keep(writable, found, [*found.problems])
        except RunError as error:
            return found, str(error)

    unkept = ""
    try:
        health, unkept = asyncio.run(checked())
        problems += health.problems
    except JournalError as error:
        problems.append(str(error))
    if json:
        data = {
            "journal": str(address),
            "ok": not problems,
            "problems": problems,
            "python": garbage_collection_setting(),
        }
        names = ("version", "server", "settings", "runs", "records", "size")
        say_json(data | _plain_health(health, names))
        return Exit.FAILED if problems else Exit.COMPLETED
    say(heading(f"journal {address}"))
    if health is not None:
        say(f"  size      {size(health.size)}")
        say(f"  store     version {health.version}, PostgreSQL {health.server}")
        say(f"  settings  {', '.join(f'{name}={value}' for name, value in health.settings.items())}")
        state = "every chain proved" if health.ok else "not everything could be proved"
        say(f"  holds     {many(health.runs, 'run')}, {many(health.records, 'record')}: {state}")
        for line in (*_unkept(unkept), *open_runs(health, OpenStore(journal, given))):
            say(line)
    for line in (*interpreter(), *judged(problems)):
        say(line)
    return Exit.FAILED if problems else Exit.COMPLETED


# ---- a test of a backup ----

_EXPLAINED = {
    "missing": "not in the backup",
    "behind": "lacks its last records",
    "diverged": "holds other records than the live journal",
    "removed": "removed from the live journal since",
    "damaged": "cannot be compared",
}


def restore_drill(backup: Address, *, json: bool, journal: Address | None) -> int:
    """Check a backup by restoring it, and compare it with the live journal, if there is one.

    `backup` is a file that `runs backup` wrote, or the address of a database into which a dump was restored. Neither
    it nor the live journal is changed. Exit code 1 when the backup cannot be restored, is damaged, or diverges.
    """
    if isinstance(backup, Path) and not backup.is_file():
        raise ConfigError(f"there is no backup {backup}: name a file that `orchestrator runs backup` wrote")
    live: Address | None = journal_file(journal)
    if isinstance(live, Path) and not live.is_file():
        if journal is not None:
            raise ConfigError(
                f"there is no journal {live} to compare with: leave --journal out, or name another"
            )
        live = None
    health: SqliteHealth | ServerHealth | None = None
    lost: JournalDifference | None = None
    problems: list[str] = []

    async def examine(restored: StoredJournal) -> None:
        nonlocal health, lost
        async with restored:
            health = await restored.check()
            problems.extend(health.problems)
            if live is None:
                return
            try:
                async with journal_at(live, only_reads=True) as opened:
                    lost = await difference(restored, opened)
            except JournalError as error:
                problems.append(f"the live journal cannot be compared: {error}")
                return
        problems.extend(lost.problems)
        problems.extend(f"run {run.run_id} {_EXPLAINED['diverged']}" for run in lost.of("diverged"))
        problems.extend(f"run {run.run_id} {_EXPLAINED['damaged']}: {run.why}" for run in lost.of("damaged"))

    with contextlib.ExitStack() as scratch:
        try:
            if isinstance(backup, Path):
                folder = scratch.enter_context(tempfile.TemporaryDirectory(prefix="orchestrator-restore-"))
                restored: StoredJournal = SqliteJournal(Path(folder) / "journal.db")
                SqliteJournal.restore(backup, Path(folder) / "journal.db")
            else:
                restored = journal_at(backup, only_reads=True)
            asyncio.run(examine(restored))
        except JournalError as error:
            problems.append(str(error))
        if json:
            data: dict[str, Any] = {
                "backup": str(backup),
                "live": None if live is None else str(live),
                "ok": not problems,
                "problems": problems,
            }
            data |= _plain_health(health, ("runs", "records"))
            say_json(data | _plain_difference(lost))
        else:
            for line in _drill_lines(backup, live, health, lost):
                say(line)
            for line in judged(problems, "the backup can be restored"):
                say(line)
    return Exit.FAILED if problems else Exit.COMPLETED


def _plain_difference(lost: JournalDifference | None) -> dict[str, Any]:
    if lost is None:
        return {}
    counts = {"runs": len(lost.of("missing")), "records": lost.records, "requests": lost.requests}
    return {"lost": counts, "differences": [asdict(run) for run in lost.runs]}


def _drill_lines(
    backup: Address,
    live: Address | None,
    health: SqliteHealth | ServerHealth | None,
    lost: JournalDifference | None,
) -> Iterator[str]:
    yield heading(f"backup {backup}")
    if health is not None:
        state = "every chain proved" if health.ok else "not everything could be proved"
        yield f"  holds     {many(health.runs, 'run')}, {many(health.records, 'record')}: {state}"
        yield from open_runs(health)
        if live is None:
            yield "  there is no live journal to compare it with"
    if lost is None:
        return
    yield ""
    yield heading(f"against the live journal {live}")
    if not lost.runs:
        yield "  nothing would be lost"
        return
    yield (
        f"  a restore would lose {many(len(lost.of('missing')), 'run')}, {many(lost.records, 'record')} and "
        f"{many(lost.requests, 'request')} in all"
    )
    if removed := len(lost.of("removed")):
        yield f"  a restore would bring back {many(removed, 'run')} that the live journal has removed"
    rows = [
        (run.run_id, run.graph, run.status, _EXPLAINED[run.state], f"{run.records:,}", f"{run.requests:,}")
        for run in lost.runs
    ]
    names = ("run", "graph", "status", "in the backup", "records lost", "requests lost")
    yield from table(names, rows, right=names[-2:])
