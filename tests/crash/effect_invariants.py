"""The invariants of effects, apart from the others (see `invariants`): a process that forks needs little else of us."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from orchestrator.files.rollback import EFFECT as FILE
from orchestrator.files.rollback import Change, UndoOutcome, fold
from orchestrator.kernel.journal import Record


def check_effects(run: str, records: Sequence[Record], *, rest: bool) -> None:
    """I4: each call is done once; I5: at rest none is open. No intent follows a result."""
    done: set[str] = set()
    open_: set[str] = set()
    for record in records:
        if record.body.get("effect") not in {"tool", "file"}:
            continue
        match record.kind:
            case "intent":
                keys = {call["key"] for call in record.body.get("calls", ())} or {record.body["key"]}
                assert not keys & done, f"I4 {run}: {keys & done} begun again after it was done"
                open_ |= keys
            case "done":
                key = record.body["key"]
                assert key not in done, f"I4 {run}: {key} is done twice"
                done.add(key)
                open_.discard(key)
            case "rolled_back":
                open_.discard(record.body["key"])
    assert not (rest and open_), f"I5 {run}: {open_} neither done nor rolled back"


def check_files(root: Path, records: Iterable[Record], *, at_rest: bool = True) -> None:
    """I6: each file is what the last change that stands made of it, else what it was before the first of them.

    At rest no change is in doubt. What was kept as somebody else made it is nobody's to check.
    """
    stack: dict[str, Change] = {}
    expected: dict[str, str | None] = {}
    for record in records:
        body = record.body
        if body.get("effect") != FILE:
            continue
        if record.kind == "rolled_back":
            change = stack[body["key"]]
            if body["outcome"] == UndoOutcome.KEPT:
                expected.pop(change.path, None)
            elif change.path in expected:
                expected[change.path] = change.before
        fold(stack, record.kind, body)
        if record.kind == "done":
            change = stack[body["key"]]
            expected[change.path] = change.after
    assert not at_rest or all(change.done for change in stack.values()), "I6: a change is in doubt"
    for name, digest in expected.items():
        path = root / name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
        assert found == digest, f"I6: {name} is not what the journal says"
    assert not list(root.rglob("*.tmp")), "I6: a temporary file is left"
