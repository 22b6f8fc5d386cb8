"""`orchestrator ralph status` and `tasks`: the state of a run and its tasks. Both only read."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.ralph.board import counted, rows, task_json
from orchestrator.cli.ralph.find import opened, run_named
from orchestrator.cli.runs.phrase import heading, table
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.errors import ConfigError, RunError
from orchestrator.journal.address import Address
from orchestrator.machines.ralph.contract import OrchestratorOutput
from orchestrator.machines.ralph.model import Task
from orchestrator.runtime.ralph import ralph as ralph_record
from orchestrator.runtime.ralph.session import ImportedTasks


def show_status(run: str | None, *, json: bool, journal: Address | None) -> int:
    """Print the state of a run, by default of the newest. Raises ConfigError if there is none."""

    async def work(store: OpenStore) -> tuple[str, Path, OrchestratorOutput]:
        found = await run_named(store, run)
        ctx = ralph_record.codec(None).decoded(found.stored.context)
        return found.head.run_id, found.session, ralph_record.status(found.stored, ctx)

    run_id, path, status = at_journal(journal, work, only_reads=True)
    session = opened(path)
    waiting = [one for one in session.questions() if one.answer is None]
    if json:
        asked = [{"id": one.id, "text": one.text, "category": one.category} for one in waiting]
        tasks = [task_json(task) for task in session.tasks()]
        say_json({"run_id": run_id, **status.as_json(), "questions": asked, "tasks": tasks})
        return Exit.COMPLETED
    say(heading(f"run {shown(run_id)}"))
    for name, value in {"session": str(path), **status.as_json()}.items():
        if value and name != "session_id":
            say(f"  {name:<14} {shown(str(value))}")
    for one in waiting:
        say(f"  {'question':<14} {one.id}  {shown(one.text)}")
    _print_tasks(session.tasks())
    return Exit.COMPLETED


def show_tasks(what: str | None, *, json: bool, journal: Address | None) -> int:
    """Print the tasks of a run, of a session's directory, or of a list of tasks. Raises ConfigError."""
    tasks = _tasks(what, journal)
    if json:
        say_json([task_json(task) for task in tasks])
    else:
        _print_tasks(tasks)
    return Exit.COMPLETED


def _tasks(what: str | None, journal: Address | None) -> tuple[Task, ...]:
    if what is not None and Path(what).is_dir():
        return opened(Path(what)).tasks()
    if what is not None and Path(what).is_file():
        try:
            taken = ImportedTasks([Path(what)])
            if taken.left_out or taken.changed:
                for line in taken.summary():
                    complain(shown(line, 400))
            return taken.tasks()
        except RunError as error:
            raise ConfigError(shown(str(error), 4_000)) from error
    return opened(at_journal(journal, lambda store: run_named(store, what), only_reads=True).session).tasks()


def _print_tasks(tasks: tuple[Task, ...]) -> None:
    say()
    for line in table(("", "task", "title"), rows(tasks)):
        say(line)
    say(f"\n{counted([task for task in tasks if not task.planning])}")
