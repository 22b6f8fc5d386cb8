"""The folder `.orchestrator/` of a project: its journal is the truth, and every append refreshes the projections.

journal.db  journal.db-owners/  journal.db-blobs/     the journal: records, prior contents
    state.json  steps.json  hashes.json  error.json       projections of the current request
    plan/<id>.v<version>.json  rollback/stack.json        projections: its plan versions; the changes that can be
    undone
    config.json                                           the project's id
    logs/<day>.jsonl                                      events, without contents

An append returns when its records are durable and the projections written; only then does the state change in memory.
A crash between the two leaves projections that are one append behind. That is not damage: the next process refreshes
them. Any other difference is damage (`projection.verify`).

Each file reflects the records up to some record, which `state.json` names. The other files belong to that record or,
after a crash, to the next append: they are written first, `state.json` last.

The log is an observer. It drops lines that it cannot write, and a gate reports that before the next plan is executed.
By default it keeps 7 days, at most 100 MB per day and 1 GB in total.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

from orchestrator.errors import Corrupt, StoreDown
from orchestrator.files.atomic import Hook, atomic_write, silent, sweep
from orchestrator.files.rollback import Change, fold
from orchestrator.journal.stored_run import PLAN, StoredRun
from orchestrator.kernel.fact import (
    EventFailed,
    Fact,
    GuardEvaluated,
    OperationAttempt,
    RolledBack,
    RunCompleted,
    RunParked,
    RunRecovered,
    RunStarted,
    Transition,
    WorkAbandoned,
)
from orchestrator.kernel.journal import (
    AgentStatistics,
    Draft,
    Journal,
    Lease,
    Posted,
    Record,
    RunConditions,
    RunCounts,
    RunHead,
    write_records,
)
from orchestrator.llm.port import Clock
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.model import ApprovalState

PENDING, RUNNING, DONE, UNDONE, FAILED, UNKNOWN = "pending", "running", "done", "undone", "failed", "unknown"


class StepLog:
    """Statuses of steps by their labels. Call `fold` with every record of a run, in order."""

    def __init__(self) -> None:
        self._status: dict[str, str] = {}
        self._changes: dict[str, str] = {}
        """Key of a file change that was not reverted -> its step."""
        self._commands: dict[str, str] = {}
        """Key of a command that has not ended -> its step."""

    def fold(self, kind: str, body: Mapping[str, Any]) -> None:
        """Apply the next record."""
        effect, step, key = body.get("effect"), str(body.get("step", "")), str(body.get("key", ""))
        match kind:
            case "step":
                self._status[step] = FAILED if body.get("status") == FAILED else RUNNING
            case "intent" if step:
                self._status[step] = RUNNING
                (self._commands if effect == "command" else self._changes)[key] = step
            case "done" if effect == "command":
                self._commands.pop(key, None)
                self._status[step] = RUNNING if body.get("exit") == 0 else FAILED
            case "done" if effect == "step":
                self._status[step] = DONE
            case "rolled_back":
                reverted = self._changes.pop(key, None) or self._commands.pop(key, None)
                if reverted is not None and reverted not in self._changes.values():
                    self._status[reverted] = UNDONE
            case "recovered":
                self._settle()
            case "transition" if body.get("dest") == ApprovalState.IDLE:
                self._settle()
            case _:
                pass

    def _settle(self) -> None:
        """Settle started steps when nothing runs, after a crash or in Idle.

        They are untouched, undone, or have an uncertain command.
        """
        for step, status in self._status.items():
            if status == RUNNING:
                self._status[step] = UNKNOWN if step in self._commands.values() else PENDING

    def of(self, plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield id and status of each step of a plan."""
        for step in plan.get("steps", ()):
            yield str(step.get("id")), self._status.get(f"{_label(plan)}{step.get('id')}", PENDING)

    def has_changes(self, plan: Mapping[str, Any]) -> bool:
        """Return whether a plan has file changes that were not reverted."""
        return any(step.startswith(_label(plan)) for step in self._changes.values())


def _label(plan: Mapping[str, Any]) -> str:
    return f"{plan.get('id')}.{plan.get('version')}/"


SCHEMA = 1
STATE = "state.json"
_MOVES = frozenset(("transition", "recovered"))


class Projection:
    """The files of one run as a function of its records. Call `take` with every record, in order."""

    def __init__(self, project_id: str) -> None:
        self._project_id = project_id
        self._written: dict[str, bytes] = {}
        self.begin("")

    def begin(self, run_id: str) -> None:
        """Start with a run without records."""
        self.stored = StoredRun(run_id)
        self.steps = StepLog()
        self._stack: dict[str, Change] = {}
        self._rendered: dict[str, tuple[object, bytes]] = {}
        """Name of a file -> what it shows, and its content."""
        self._at: float = 0.0

    def take(self, kind: str, body: Mapping[str, Any]) -> None:
        """Apply the next record."""
        self.stored.fold(kind, body)
        self.steps.fold(kind, body)
        fold(self._stack, kind, body)
        self._at = float(body.get("at", self._at) or self._at)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The file changes that an undo would revert, oldest first."""
        return tuple(self._stack.values())

    def changed(self, seq: int) -> dict[str, bytes]:
        """Return the files to write, `state.json` last; they count as written."""
        files = self.files(seq)
        changed = {name: content for name, content in files.items() if self._written.get(name) != content}
        self._written.update(changed)
        return changed

    def forget(self) -> None:
        """Mark all files as unwritten, so that the next append writes all."""
        self._written.clear()

    def files(self, seq: int) -> dict[str, bytes]:
        """Return every file as of a record, by name."""
        context = self.stored.context
        plan = context.get("plan") or {}
        bodies = {f"plan/{one['id']}.v{one['version']}.json": one for one in context.get("versions", [])}
        bodies["steps.json"] = {
            "plan_id": plan.get("id"),
            "version": plan.get("version"),
            "status": context.get("plan_status", ""),
            "steps": [{"id": one, "status": status} for one, status in self.steps.of(plan)],
        }
        bodies["hashes.json"] = {"plan_id": plan.get("id"), "targets": plan.get("targets", [])}
        bodies["rollback/stack.json"] = {
            "changes": [
                {
                    "key": one.key,
                    "step": one.step,
                    "change": one.kind.value,
                    "path": one.path,
                    "before": one.before,
                    "after": one.after,
                    "mode": one.mode,
                    "done": one.done,
                }
                for one in self._stack.values()
            ]
        }
        bodies["error.json"] = {"error": context.get("fault"), "shown": context.get("shown", False)}
        files: dict[str, bytes] = {}
        for name, body in bodies.items():  # a plan can be long, so only a body that changed is encoded again
            before, content = self._rendered.get(name, (None, b""))
            if before != body:
                content = _json(body)
                self._rendered[name] = body, content
            files[name] = content
        state = self.stored.state or ApprovalState.IDLE.value
        busy = state in (
            ApprovalState.EXECUTING.value,
            ApprovalState.PAUSED.value,
            ApprovalState.CANCELLING.value,
        )
        files[STATE] = _json(
            {
                "schema_version": SCHEMA,
                "project_id": self._project_id,
                "state": state,
                "active_plan_id": plan.get("id"),
                "active_execution_id": self.stored.run_id if busy else None,
                "last_updated_at": self._at,
                "run_id": self.stored.run_id,
                "record": seq,
                "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
            }
        )
        return files


def verify(folder: Path, project_id: str, run_id: str, records: Sequence[Record]) -> bool:
    """Compare the files of a folder with the records of its run; return False if they only have to be refreshed.

    Raises Corrupt if the records cannot have led to the files.
    """
    content = _read(folder / STATE)
    if content is None:
        return _refuse(f"{STATE} is missing") if _moved(records[1:]) > 1 else False
    try:
        shown = json.loads(content)
    except (ValueError, RecursionError):
        shown = None
    if not isinstance(shown, dict):
        shown = {"run_id": None, "record": None}
    if shown.get("run_id") != run_id:  # the last append of the previous run, or the first of this one
        return _refuse(f"{STATE} is about another request") if len(records) > 1 else False
    at = shown.get("record")
    if not isinstance(at, int) or not 0 <= at < len(records):
        return _refuse(f"{STATE} names a record that is not in the journal")
    if _moved(records[at + 1 :]) > 1:
        _refuse(f"{STATE} is older than any crash could leave it")
    then, now = _projected(project_id, run_id, records[: at + 1]), _projected(project_id, run_id, records)
    for name, content in then.items():
        if _read(folder / name) not in (content, now[name]):
            _refuse(f"{name} differs from the journal")
    return at == len(records) - 1 and all(_read(folder / name) == content for name, content in now.items())


def _projected(project_id: str, run_id: str, records: Sequence[Record]) -> dict[str, bytes]:
    projection = Projection(project_id)
    projection.begin(run_id)
    for record in records:
        projection.take(record.kind, record.body)
    return projection.files(records[-1].seq)


def _moved(records: Iterable[Record]) -> int:
    return sum(record.kind in _MOVES for record in records)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _refuse(why: str) -> bool:
    raise Corrupt(f".orchestrator/ was changed from outside: {why}")


def _json(body: object) -> bytes:
    return json.dumps(body, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


FOLDER = ".orchestrator"
EMPTY = f"{FOLDER}/ was changed from outside: its journal is empty, state.json is not"
"""The damage of a project whose journal is missing while its projections exist."""
_FOLDERS = ("plan", "rollback", "logs")


def folder_of(project: Path | str) -> Path:
    """Return the folder of a project, which may not exist. Raises ApprovalError if the project is invalid."""
    root = Path(project)
    try:
        found = root.resolve(strict=True)
        if not found.is_dir():
            raise NotADirectoryError(root)
    except OSError as error:
        why = "is not a folder" if isinstance(error, NotADirectoryError) else "cannot be opened"
        raise ApprovalError(Fault("CFG-003", f"the project {str(project)!r} {why}")) from None
    try:
        str(found).encode()  # the store and its records require it
    except UnicodeEncodeError:
        raise ApprovalError(
            Fault("CFG-003", f"the project {str(found)!r} has a name that is not UTF-8; rename it")
        ) from None
    folder = found / FOLDER
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ApprovalError(Fault("CFG-003", f"{FOLDER!r} in the project must be a real folder; remove it"))
    return folder


def prepare(folder: Path) -> str:
    """Create the folder with its subfolders, and return the project's id."""
    try:
        for each in (folder, *(folder / name for name in _FOLDERS)):
            each.mkdir(mode=0o700, exist_ok=True)
            if stat.S_ISLNK(os.lstat(each).st_mode):
                raise ApprovalError(Fault("CFG-003", f"{each.name!r} in {FOLDER!r} is a symlink; remove it"))
        with _alone(folder):  # of two processes that come first, only one makes the id
            if not (name := project_id(folder)):
                name = secrets.token_hex(16)
                body = {"schema_version": 1, "project_id": name}
                atomic_write(folder / "config.json", json.dumps(body, indent=2).encode() + b"\n", mode=0o600)
            return name
    except OSError as error:
        raise ApprovalError(Fault("CFG-003", f"{FOLDER!r} cannot be used: {error.strerror}")) from None


def tidy(folder: Path) -> None:
    """Remove remains of crashes. Only for the owner of the project: a write in flight would lose its temporary file."""
    for each in (folder, *(folder / name for name in _FOLDERS)):
        sweep(each)


def project_id(folder: Path) -> str:
    """Return the id of a project, empty if it has none. Raises ApprovalError if it cannot be read."""
    try:
        text = (folder / "config.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        text = ""
    try:
        return str(json.loads(text)["project_id"])
    except (ValueError, KeyError, TypeError):
        message = f"config.json in {FOLDER!r} cannot be read; remove it to give the project a new id"
        raise ApprovalError(Fault("ST-002", message)) from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def forget_plans(folder: Path, last: int) -> None:
    """Remove the plans of the requests up to number `last`."""
    for file in (folder / "plan").glob("plan-*.json"):
        number = file.name.removeprefix("plan-").partition(".")[0].partition("-")[0]
        if number.isdecimal() and int(number) <= last:
            file.unlink(missing_ok=True)


def set_aside(folder: Path) -> str:
    """Move untrusted files into a new folder for a person to inspect; return its name."""
    number = next(n for n in range(1, 1_000_000) if not (folder / f"damaged-{n}").exists())
    aside = folder / f"damaged-{number}"
    aside.mkdir(mode=0o700)
    for each in sorted(folder.iterdir()):
        if not each.name.startswith(("damaged-", "logs", "config.json")):
            each.rename(aside / each.name)
    return aside.name


class ProjectJournal:
    """A journal that serializes its appends, each with the projections that follow from it.

    The steps of a plan and the driver append for the same run; both do so while a cancelled step is in flight.
    """

    def __init__(self, inner: Journal, folder: Path, projection: Projection, hook: Hook = silent) -> None:
        self.inner = inner
        self.backend = inner.backend
        self.shared = inner.shared
        self._folder = folder
        self._turn = asyncio.Lock()
        self.projection = projection
        """Projections of the run of the folder."""
        self._hook = hook

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        lease = await self.inner.create(run_id, owner, body)
        self._hook("created")
        self.projection.begin(run_id)
        self.projection.take("created", body)
        await self.refresh(lease.seq)
        return lease

    async def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> None:
        async with self._turn:
            last = drafts[-1]
            if last.kind == "parked" and self.projection.stored.moved_by(drafts[:-1]).questions:
                # A plan waits for approval: a listing shows that by the record that parks the run.
                drafts = [*drafts[:-1], Draft(last.kind, {**last.body, "tools": [PLAN]})]
            await write_records(self.inner, lease, *drafts, blobs=blobs)
            self._hook("appended")
            for draft in drafts:
                self.projection.take(draft.kind, draft.body)
            await self.refresh(lease.seq)

    async def refresh(self, seq: int) -> None:
        """Write the changed projections. Raises StoreDown; the run must not continue then."""
        changed = self.projection.changed(seq)
        try:
            await asyncio.to_thread(self._write, changed)
        except OSError as error:
            self.projection.forget()
            raise StoreDown(f"{FOLDER}/ cannot be written: {error.strerror}", "io") from error

    def _write(self, changed: Mapping[str, bytes]) -> None:
        for name, content in changed.items():
            atomic_write(name, content, mode=0o600, root=self._folder)
            self._hook("projected")

    # ---- delegated to the store ----

    async def claim(self, run_id: str, owner: str, *, steal: bool = False) -> Lease:
        return await self.inner.claim(run_id, owner, steal=steal)

    async def release(self, lease: Lease) -> None:
        await self.inner.release(lease)

    async def load(self, run_id: str, since: int = 0) -> Sequence[Record]:
        return await self.inner.load(run_id, since)

    async def blob(self, digest: str) -> bytes:
        return await self.inner.blob(digest)

    async def head(self, run_id: str) -> RunHead:
        return await self.inner.head(run_id)

    def runs(self, **conditions: Unpack[RunConditions]) -> AsyncIterator[RunHead]:
        return self.inner.runs(**conditions)

    async def excerpts(self, run_ids: Sequence[str]) -> dict[str, list[Draft]]:
        return await self.inner.excerpts(run_ids)

    async def count(self, **conditions: Unpack[RunConditions]) -> RunCounts:
        return await self.inner.count(**conditions)

    async def names(self) -> list[tuple[str, str]]:
        return await self.inner.names()

    async def agents(
        self, *, by_version: bool = False, **conditions: Unpack[RunConditions]
    ) -> list[AgentStatistics]:
        return await self.inner.agents(by_version=by_version, **conditions)

    async def version(self) -> str:
        return await self.inner.version()

    async def newest(self, conversation_id: str) -> RunHead | None:
        return await self.inner.newest(conversation_id)

    async def post(self, run_id: str, request: Posted) -> bool:
        return await self.inner.post(run_id, request)

    async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
        return await self.inner.inbox(run_id, since)

    async def news(self, since: int) -> tuple[int, list[str]]:
        return await self.inner.news(since)

    async def prune(self, *, older_than: float | None = None, keep_last: int | None = None) -> int:
        return await self.inner.prune(older_than=older_than, keep_last=keep_last)

    async def erase(self, run_id: str) -> None:
        await self.inner.erase(run_id)

    async def close(self) -> None:
        await self.inner.close()


_FIELDS: Mapping[type, tuple[str, ...]] = {
    RunStarted: ("origin", "state"),
    Transition: ("seq", "event", "source", "dest", "dwell", "guard", "reason"),
    EventFailed: ("state", "event", "reason", "hook", "committed"),
    GuardEvaluated: ("state", "event", "guard", "result"),
    OperationAttempt: ("operation", "number", "outcome", "reason", "delay"),
    RunParked: ("state", "reason"),
    RunCompleted: ("outcome", "reason", "transitions", "seconds"),
    RunRecovered: ("outcome",),
    RolledBack: ("outcome",),
    WorkAbandoned: ("state", "kind", "name"),
}
"""Fact -> its logged fields: only names and numbers from closed sets."""


class ProjectLog:
    """An observer that writes `<folder>/<day>.jsonl`. Days are in UTC."""

    def __init__(self, folder: Path, limits: ApprovalLimits, clock: Clock) -> None:
        self._folder = folder
        self._limits = limits
        self._clock = clock
        self._day = ""

    def observe(self, fact: Fact, /) -> None:
        """Write a line about a fact. Raises OSError, which the driver counts."""
        names = _FIELDS.get(type(fact))
        if names is None:
            return
        kind = type(fact).__name__
        said: dict[str, Any] = {name: getattr(fact, name) for name in names}
        if isinstance(fact, EventFailed):
            said["error"] = type(fact.error).__name__ if fact.error is not None else None
        self.write(kind, run_id=getattr(fact, "run_id", ""), **said)

    def write(self, kind: str, **said: Any) -> None:
        """Write a line, unless the day's file is full."""
        now = datetime.fromtimestamp(self._clock.time(), UTC)
        day = f"{now:%Y-%m-%d}"
        if day != self._day:
            self._turn_over(day)
        line = json.dumps({"at": now.isoformat(), "kind": kind, **said}, ensure_ascii=False).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._folder / f"{day}.jsonl", flags, 0o600)
        try:
            most = self._limits.log_file_bytes
            if not most or os.fstat(fd).st_size + len(line) <= most:
                os.write(fd, line)
        finally:
            os.close(fd)

    def is_ready(self) -> bool:
        """Return whether the log can be written."""
        return os.access(self._folder, os.W_OK | os.X_OK)

    def _turn_over(self, day: str) -> None:
        """Start a new day: remove expired files, and the oldest ones if all are too large."""
        self._day = day
        files = sorted(self._folder.glob("????-??-??.jsonl"))
        keep = self._limits.log_days
        if keep:
            oldest = datetime.fromisoformat(day).timestamp() - (keep - 1) * 86_400
            for file in files:
                if datetime.fromisoformat(file.stem).timestamp() < oldest:
                    file.unlink(missing_ok=True)
            files = [file for file in files if file.exists()]
        total = sum(file.stat().st_size for file in files)
        for file in files:
            if not self._limits.log_total_bytes or total <= self._limits.log_total_bytes:
                return
            total -= file.stat().st_size
            file.unlink(missing_ok=True)
