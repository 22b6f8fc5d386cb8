"""Runs of the loop and their sessions: found by name, shown with their tasks, and sent messages."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.load import actor_name
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.runs.phrase import heading, table
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.cli.spread import spread
from orchestrator.errors import ConfigError, RunError
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Posted, RunHead
from orchestrator.machines.ralph.contract import OrchestratorOutput
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.model import Task
from orchestrator.machines.ralph.tasklist import SETTLED, Marker
from orchestrator.runtime.ralph import ralph as ralph_record
from orchestrator.runtime.ralph.session import ImportedTasks, SessionDirectory

RunOrSession = Annotated[str, typer.Argument(metavar="RUN", help="A run id, or a session's directory.")]
AnyRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="A run id, or a session's directory. Default: the newest run.", show_default=False
    ),
]


# ---- the run that a command names ----


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

    async def read(head: RunHead) -> SessionRun:
        return SessionRun(head, StoredRun.of(head.run_id, await store.journal.load(head.run_id)))

    heads, _ = await store.heads()
    ours = [head for head in heads if head.graph == RALPH.name]
    if name is None:
        if not ours:
            raise ConfigError(
                f"no run of the loop in {store.journal.address}: `orchestrator ralph run --example` makes one"
            )
        return await read(ours[-1])
    if (session := _folder(name)) is not None:  # its newest run
        for head in reversed(ours):
            if head.run_id.startswith(session.name) and (found := await read(head)).session == session:
                return found
        raise ConfigError(f"no run of session {shown(str(session))} in {store.journal.address}")
    head = await store.run(name)
    if head.graph != RALPH.name:
        where = store.command("show", head.run_id)
        raise ConfigError(
            f"run {head.run_id} belongs to graph {shown(head.graph)!r}, not of {RALPH.name!r}: `{where}`"
        )
    return await read(head)


def _folder(name: str) -> Path | None:
    return Path(name).absolute() if Path(name).is_dir() else None


def opened(session: Path) -> SessionDirectory:
    """Open a session. Raises ConfigError with file and line if it cannot be read."""
    try:
        return SessionDirectory.open(session)
    except RunError as error:
        raise ConfigError(shown(str(error), 4_000)) from error


# ---- status and tasks ----


@spread
def status(run: AnyRun = None, *, at: given.JournalOptions) -> int:
    """Show the state of a run: last and next action, questions, tasks."""

    async def work(store: OpenStore) -> tuple[str, Path, OrchestratorOutput]:
        found = await run_named(store, run)
        ctx = ralph_record.codec(None).decoded(found.stored.context)
        return found.head.run_id, found.session, ralph_record.status(found.stored, ctx)

    run_id, path, state = at_journal(at.journal, work, only_reads=True)
    session = opened(path)
    waiting = [one for one in session.questions() if one.answer is None]
    if at.json:
        asked = [{"id": one.id, "text": one.text, "category": one.category} for one in waiting]
        tasks = [task_json(task) for task in session.tasks()]
        say_json({"run_id": run_id, **state.as_json(), "questions": asked, "tasks": tasks})
        return Exit.COMPLETED
    say(heading(f"run {shown(run_id)}"))
    for name, value in {"session": str(path), **state.as_json()}.items():
        if value and name != "session_id":
            say(f"  {name:<14} {shown(str(value))}")
    for one in waiting:
        say(f"  {'question':<14} {one.id}  {shown(one.text)}")
    _print_tasks(session.tasks())
    return Exit.COMPLETED


@spread
def tasks(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run id, a session's directory, or a list of tasks. Default: the newest run.",
            show_default=False,
        ),
    ] = None,
    *,
    at: given.JournalOptions,
) -> int:
    """Print the tasks of a run, a session, or a list of tasks.

    A list of tasks is printed as it would be imported.
    """
    if what is not None and Path(what).is_dir():
        found = opened(Path(what)).tasks()
    elif what is not None and Path(what).is_file():
        try:
            taken = ImportedTasks([Path(what)])
            if taken.left_out or taken.changed:
                for line in taken.summary():
                    complain(shown(line, 400))
            found = taken.tasks()
        except RunError as error:
            raise ConfigError(shown(str(error), 4_000)) from error
    else:
        run = at_journal(at.journal, lambda store: run_named(store, what), only_reads=True)
        found = opened(run.session).tasks()
    if at.json:
        say_json([task_json(task) for task in found])
    else:
        _print_tasks(found)
    return Exit.COMPLETED


def _print_tasks(found: tuple[Task, ...]) -> None:
    say()
    for line in table(("", "task", "title"), rows(found)):
        say(line)
    say(f"\n{counted([task for task in found if not task.planning])}")


def settled(found: Iterable[Task]) -> tuple[int, int]:
    """Return the number of done tasks and of all tasks, without cancelled ones."""
    counted_ones = [task for task in found if task.marker is not Marker.CANCELLED]
    return sum(1 for task in counted_ones if task.marker in SETTLED), len(counted_ones)


def counted(found: Sequence[Task]) -> str:
    """Return the progress in words."""
    done, all_of_them = settled(found)
    return f"{done} of {all_of_them} tasks done"


def rows(found: Iterable[Task]) -> list[tuple[str, str, str]]:
    """Return the tasks as the rows of a plain table."""
    return [(f"[{task.marker.value}]", task.id, task.title) for task in found]


def task_json(task: Task) -> dict[str, Any]:
    """Return a task as plain data."""
    return {
        "id": task.id,
        "title": task.title,
        "marker": task.marker.value,
        "status": task.marker.name.lower(),
        "planning": task.planning,
        "type": task.type,
        "files": list(task.files),
        "objective": task.objective,
        "criteria": list(task.criteria),
        "inherits_from": list(task.inherits_from),
    }


# ---- messages ----

_DELIVERY = {
    "inform": "all agents called from its next boundary on know it",
    "steer": "it is planned at its next boundary",
    "stop": "it ends as cancelled at its next boundary, after what is in flight",
}


@spread
def tell(
    run: RunOrSession,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
    *,
    steer: Annotated[bool, typer.Option("--steer", help="It is a new requirement: plan it.")] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the run at its next boundary; TEXT is the reason.")
    ] = False,
    by: given.By = None,
    at: given.JournalOptions,
) -> int:
    """Send a message to all agents of a run.

    With --steer the message is a new requirement, with --stop it ends the run.
    """
    if not text.strip():
        raise ConfigError("there is nothing to tell: give a text")
    kind = "stop" if stop else "steer" if steer else "inform"

    async def work(store: OpenStore) -> str:
        found = await run_named(store, run)
        run_id = found.head.run_id
        if found.head.status == "ended":
            again = f"orchestrator ralph run TEXT --session {found.session}"
            raise ConfigError(f"run {run_id} has ended: `{again}` begins another one in its session")
        message = Posted(secrets.token_hex(8), kind, {"why": text}, actor_name(by))
        await store.journal.post(run_id, message)  # the run reads it in any process
        return run_id

    run_id = at_journal(at.journal, work)
    if at.json:
        say_json({"run_id": run_id, "kind": kind, "text": text})
    else:
        say(f"run {run_id} was told: {_DELIVERY[kind]}")
    return Exit.COMPLETED
