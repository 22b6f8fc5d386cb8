"""`orchestrator runs rollback`: undo the file changes of a stored run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from uuid import uuid4

from orchestrator.cli.exit import Exit
from orchestrator.cli.launch import Launch
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.runs.phrase import many
from orchestrator.cli.runs.run_service import refuse_approval
from orchestrator.cli.runs.store import OpenStore, at_journal, existing
from orchestrator.cli.runs_option import RollbackOptions
from orchestrator.cli.trust.consent import is_trusted_run
from orchestrator.errors import ConfigError
from orchestrator.files.rollback import Change, Conflict, RollbackStack, UndoReport, plan_undo
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

_BACK = {
    "create": "remove {path}, which it made",
    "edit": "put back {path} as it was before",
    "delete": "put back {path}, which it removed",
}
"""Kind of change -> the effect of its undo."""


def roll_back(options: RollbackOptions) -> int:
    """Undo the file changes of a run, newest first; without `yes` only list them. Exit code 1 with conflicts."""

    async def work(store: OpenStore) -> int:
        head = await store.run(options.run)
        refuse_approval(store, head)
        records = await store.journal.load(head.run_id)
        changes = plan_undo(records, step=options.step)
        if not changes:
            _print_nothing(options, head)
            return Exit.COMPLETED
        root = _root(options, head, records)
        if not options.yes:
            _print_plan(store, options, head, root, changes)
            return Exit.COMPLETED
        return _print_undone(options, head, await _undo(store.journal, options, head, root))

    return at_journal(options.journal, work)


async def _undo(journal: Journal, options: RollbackOptions, head: RunHead, root: Path) -> UndoReport:
    lease = await journal.claim(head.run_id, f"runs rollback {uuid4().hex[:8]}")
    try:
        records = await journal.load(head.run_id)  # this process is the only writer from here on
        try:
            stack = RollbackStack.recover(records, journal, lease, root)
            return await stack.undo(step=options.step)
        finally:
            await stand_again(journal, lease, records)
    finally:
        await let_go(journal, lease)


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


def _print_nothing(options: RollbackOptions, head: RunHead) -> None:
    if options.json:
        say_json({"run_id": head.run_id, "undone": [], "conflicts": []})
    else:
        of = f" of step {options.step!r}" if options.step is not None else ""
        say(f"run {shown(head.run_id)} has no change to a file{of} that could be undone")


def _print_plan(
    store: OpenStore, options: RollbackOptions, head: RunHead, root: Path, changes: Sequence[Change]
) -> None:
    if options.json:
        say_json({"run_id": head.run_id, "root": str(root), "would_undo": [asdict(one) for one in changes]})
        return
    say(f"{many(len(changes), 'change')} of run {shown(head.run_id)} to undo below {shown(str(root))}:")
    for change in changes:
        say(_line(change))
    step = () if options.step is None else ("--step", options.step)
    named = () if options.root is None else ("--root", str(options.root))
    say("nothing was touched; to do it:")
    say(f"  {store.command('rollback', head.run_id, *named, *step, '--yes')}")


def _line(change: Change) -> str:
    doubt = "" if change.done else " (in doubt: it may not have happened)"
    step = f"step {change.step}  " if change.step else ""
    return shown(f"  {step}{_BACK[change.kind.value].format(path=change.path)}{doubt}", 600)


def _print_undone(options: RollbackOptions, head: RunHead, undone: UndoReport) -> int:
    if options.json:
        plain = asdict(undone)
        say_json({"run_id": head.run_id, "undone": plain["changes"], "conflicts": plain["conflicts"]})
    else:
        for line in _lines(undone):
            say(line)
    if not undone.conflicts:
        return Exit.COMPLETED
    complain(
        f"{many(len(undone.conflicts), 'file')} of run {head.run_id} changed from outside and kept as it is: "
        f"{undone.conflicts[0]}"
    )
    return Exit.FAILED


def _lines(undone: UndoReport) -> Iterator[str]:
    yield f"{many(len(undone.changes), 'change')} undone, {many(len(undone.conflicts), 'conflict')}"
    for change in undone.changes:
        yield f"  undone    {change.kind.value:<6}  {shown(change.path, 300)}"
    for conflict in undone.conflicts:
        yield f"  conflict  {_kept(conflict)}"


def _kept(conflict: Conflict) -> str:
    return shown(f"{conflict}; it was kept", 600)
