"""`runs rollback`: changes to files are taken back, what others made of them is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.trust.signature import signed
from orchestrator.files.rollback import RollbackStack
from orchestrator.journal.sqlite import SqliteJournal
from tests.cli.parked import stored
from tests.cli.recorded import JOURNAL, Tape, play, record

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)


@pytest.fixture
def work(folder: Path) -> Path:
    """A folder that a run has changed in two steps: one file made, one edited, one removed."""
    files = folder / "work"
    files.mkdir()
    (files / "old.txt").write_text("old")
    (files / "doomed.txt").write_text("doomed")
    asyncio.run(_changed(Tape("run-1", launch=signed({"cwd": str(files)})).begin(), files))
    return files


async def _changed(tape: Tape, files: Path, *, ends: bool = True) -> None:
    async with SqliteJournal(JOURNAL) as journal:
        lease = await play(tape, journal)
        stack = RollbackStack(journal, lease, files)
        await stack.create("new/made.txt", b"made", step="1")
        await stack.edit("old.txt", b"edited", step="1")
        await stack.delete("doomed.txt", step="2")
        if ends:
            waiting = journal.append(lease, Tape("x").ends("completed", "none").appends[0])
            assert waiting is not None
            await waiting
        await journal.release(lease)


def tree(files: Path) -> dict[str, str]:
    return {
        str(file.relative_to(files)): file.read_text() for file in sorted(files.rglob("*")) if file.is_file()
    }


CHANGED = {"new/made.txt": "made", "old.txt": "edited"}
BEFORE = {"doomed.txt": "doomed", "old.txt": "old"}


def test_without_yes_it_only_says_what_would_be_undone(cli: Cli, work: Path) -> None:
    before = stored()
    done = cli("runs", "rollback", "run-1", *AT)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        f"3 changes of run run-1 to undo below {work}:\n"
        "  step 2  put back doomed.txt, which it removed\n"
        "  step 1  put back old.txt as it was before\n"
        "  step 1  remove new/made.txt, which it made\n"
        "nothing was touched; to do it:\n"
        "  orchestrator runs rollback run-1 --yes --journal journal.db\n"
    )
    assert (tree(work), stored()) == (CHANGED, before)


def test_with_yes_everything_is_as_before_and_the_run_stands_where_it_stood(cli: Cli, work: Path) -> None:
    done = cli("runs", "rollback", "run-1", "--yes", *AT)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == "3 changes undone, 0 conflicts"
    assert tree(work) == BEFORE
    assert not (work / "new").exists()
    head, records = stored()
    assert (head.status, head.reason, head.owner) == ("ended", "none", None)
    assert [one.kind for one in records[-4:]] == ["rolled_back"] * 3 + ["ended"]
    again = cli("runs", "rollback", "run-1", "--yes", *AT)
    assert again.out == "run run-1 has no change to a file that could be undone\n"
    assert stored() == (head, records)


def test_one_step_alone_can_be_undone(cli: Cli, work: Path) -> None:
    assert cli("runs", "rollback", "run-1", "--step", "2", "--yes", *AT).code == 0
    assert tree(work) == CHANGED | {"doomed.txt": "doomed"}
    assert "of step '9'" in cli("runs", "rollback", "run-1", "--step", "9", *AT).out


def test_what_others_changed_is_kept_and_said_with_exit_code_1(cli: Cli, work: Path) -> None:
    (work / "old.txt").write_text("mine now")
    done = cli("runs", "rollback", "run-1", "--yes", *AT)
    assert done.code == 1
    assert "1 file of run run-1 changed from outside and kept as it is: 'old.txt'" in done.err
    assert "  conflict  'old.txt' was changed from outside" in done.out
    assert tree(work) == BEFORE | {"old.txt": "mine now"}
    assert stored()[0].status == "ended"
    found = json.loads(cli("runs", "rollback", "run-1", "--yes", "--json", *AT).out)
    assert ([one["path"] for one in found["conflicts"]], found["undone"]) == (["old.txt"], [])


def test_a_crashed_run_is_rolled_back_too_and_stays_open(cli: Cli, folder: Path) -> None:
    files = folder / "work"
    files.mkdir()
    for name in ("old", "doomed"):
        (files / f"{name}.txt").write_text(name)
    asyncio.run(_changed(Tape("run-1").begin(), files, ends=False))
    assert cli("runs", "rollback", "run-1", "--root", "work", "--yes", *AT).code == 0
    assert tree(files) == BEFORE
    assert stored()[0].status == "open"


def test_the_plan_in_json(cli: Cli, work: Path) -> None:
    found = json.loads(cli("runs", "rollback", "run-1", "--json", *AT).out)
    assert [(one["kind"], one["path"]) for one in found["would_undo"]] == [
        ("delete", "doomed.txt"),
        ("edit", "old.txt"),
        ("create", "new/made.txt"),
    ]
    assert found["root"] == str(work)


def test_a_run_that_says_no_folder_needs_one(
    cli: Cli, one_sentence: Callable[[Any], str], work: Path
) -> None:
    (work / "doomed.txt").write_text("doomed")
    (work / "old.txt").write_text("old")
    (work / "new" / "made.txt").unlink()
    asyncio.run(_changed(Tape("run-2").begin(), work))
    done = cli("runs", "rollback", "run-2", *AT)
    assert "does not say which folder its files are in: give it with --root DIR" in one_sentence(done)
    done = cli("runs", "rollback", "run-2", "--root", "nowhere", *AT)
    assert "nowhere is no folder: --root names the one" in one_sentence(done)
    assert done.code == 2


def test_a_run_that_somebody_holds_is_left_alone(
    cli: Cli, one_sentence: Callable[[Any], str], work: Path
) -> None:
    async def held() -> Any:
        async with SqliteJournal(JOURNAL) as journal:
            await journal.claim("run-1", "worker-1")
            return await asyncio.to_thread(cli, "runs", "rollback", "run-1", "--yes", *AT)

    done = asyncio.run(held())
    assert "run 'run-1' is held by worker-1" in one_sentence(done)
    assert (done.code, tree(work)) == (2, CHANGED)


def test_a_run_without_files_has_nothing_to_undo(cli: Cli, folder: Path) -> None:
    record(Tape("run-1").begin().completes())
    done = cli("runs", "rollback", "run-1", "--yes", *AT)
    assert (done.code, done.out) == (0, "run run-1 has no change to a file that could be undone\n")
