"""Finds the subject of a command of the group: a run of the journal, a session's directory, or a list of tasks."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.output import shown
from orchestrator.cli.runs.store import OpenStore
from orchestrator.errors import ConfigError, RunError
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Posted, RunHead
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.runtime.ralph.session import SessionDirectory


@dataclass(frozen=True, slots=True)
class SessionRun:
    """A run with its session."""

    head: RunHead
    stored: StoredRun

    @property
    def session(self) -> Path:
        """The session's directory."""
        return Path(str(self.stored.context.get("session_path") or ""))

    @property
    def launch(self) -> Mapping[str, Any]:
        """The launch data of the run."""
        return self.stored.created.get("launch") or {}


async def run_named(store: OpenStore, name: str | None) -> SessionRun:
    """Return a run by its id, by its session's directory, or the newest by default. Raises ConfigError."""
    heads, _ = await store.heads()
    ours = [head for head in heads if head.graph == RALPH.name]
    if name is None:
        if not ours:
            raise ConfigError(
                f"no run of the loop in {store.journal.address}: `orchestrator ralph run --example` makes one"
            )
        return await _read(store, ours[-1])
    if (session := _folder(name)) is not None:
        return await _of_session(store, session, ours)
    head = await store.run(name)
    if head.graph != RALPH.name:
        where = store.command("show", head.run_id)
        raise ConfigError(
            f"run {head.run_id} belongs to graph {shown(head.graph)!r}, not of {RALPH.name!r}: `{where}`"
        )
    return await _read(store, head)


def _folder(name: str) -> Path | None:
    return Path(name).absolute() if Path(name).is_dir() else None


async def _of_session(store: OpenStore, session: Path, ours: list[RunHead]) -> SessionRun:
    """Return the newest run of a session."""
    for head in reversed(ours):
        if head.run_id.startswith(session.name):
            found = await _read(store, head)
            if found.session == session:
                return found
    raise ConfigError(f"no run of session {shown(str(session))} in {store.journal.address}")


async def send(store: OpenStore, run_id: str, kind: str, body: Mapping[str, Any], by: str) -> None:
    """Post a message for a run, which reads it at its next boundary, in any process."""
    await store.journal.post(run_id, Posted(secrets.token_hex(8), kind, body, by))


async def _read(store: OpenStore, head: RunHead) -> SessionRun:
    return SessionRun(head, StoredRun.of(head.run_id, await store.journal.load(head.run_id)))


def opened(session: Path) -> SessionDirectory:
    """Open a session. Raises ConfigError with file and line if it cannot be read."""
    try:
        return SessionDirectory.open(session)
    except RunError as error:
        raise ConfigError(shown(str(error), 4_000)) from error
