"""The projections in `.orchestrator/`: pure functions of the records, so that every file can be verified.

Each file reflects the records up to some record, which `state.json` names. The other files belong to that record or,
after a crash, to the next append: they are written first, `state.json` last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import Corrupt
from orchestrator.files.change import Change, fold
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from orchestrator.machines.approval.model import ApprovalState
from orchestrator.runtime.approval.step_log import StepLog

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
        bodies["steps.json"] = self._steps(plan)
        bodies["hashes.json"] = {"plan_id": plan.get("id"), "targets": plan.get("targets", [])}
        bodies["rollback/stack.json"] = {"changes": [_change(one) for one in self._stack.values()]}
        bodies["error.json"] = {"error": context.get("fault"), "shown": context.get("shown", False)}
        files = {name: self._content(name, body) for name, body in bodies.items()}
        files[STATE] = _json(self._state(plan, files, seq))
        return files

    def _content(self, name: str, body: object) -> bytes:
        """Return the content of a file. A plan can be long, so only a body that changed is encoded again."""
        before, content = self._rendered.get(name, (None, b""))
        if before != body:
            content = _json(body)
            self._rendered[name] = body, content
        return content

    def _steps(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        rows = [{"id": one, "status": status} for one, status in self.steps.of(plan)]
        return {
            "plan_id": plan.get("id"),
            "version": plan.get("version"),
            "status": self.stored.context.get("plan_status", ""),
            "steps": rows,
        }

    def _state(self, plan: Mapping[str, Any], files: Mapping[str, bytes], seq: int) -> dict[str, Any]:
        state = self.stored.state or ApprovalState.IDLE.value
        busy = state in (
            ApprovalState.EXECUTING.value,
            ApprovalState.PAUSED.value,
            ApprovalState.CANCELLING.value,
        )
        return {
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


def verify(folder: Path, project_id: str, run_id: str, records: list[Record]) -> bool:
    """Compare the files of a folder with the records of its run; return False if they only have to be refreshed.

    Raises Corrupt if the records cannot have led to the files.
    """
    shown = _shown(folder)
    if shown is None:
        return _refuse(f"{STATE} is missing") if _moved(records[1:]) > 1 else False
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


def _projected(project_id: str, run_id: str, records: list[Record]) -> dict[str, bytes]:
    projection = Projection(project_id)
    projection.begin(run_id)
    for record in records:
        projection.take(record.kind, record.body)
    return projection.files(records[-1].seq)


def _moved(records: Iterable[Record]) -> int:
    return sum(record.kind in _MOVES for record in records)


def _shown(folder: Path) -> Mapping[str, Any] | None:
    content = _read(folder / STATE)
    if content is None:
        return None
    try:
        shown = json.loads(content)
    except (ValueError, RecursionError):
        shown = None
    return shown if isinstance(shown, dict) else {"run_id": None, "record": None}


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _refuse(why: str) -> bool:
    raise Corrupt(f".orchestrator/ was changed from outside: {why}")


def _change(change: Change) -> dict[str, Any]:
    return {
        "key": change.key,
        "step": change.step,
        "change": change.kind.value,
        "path": change.path,
        "before": change.before,
        "after": change.after,
        "mode": change.mode,
        "done": change.done,
    }


def _json(body: object) -> bytes:
    return json.dumps(body, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
