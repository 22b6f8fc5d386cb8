"""`doctor --restore`: what a backup holds, and what a restore would lose of the live journal."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Posted
from orchestrator.testing.journal_contract import NOTE, write
from tests.cli.recorded import JOURNAL, Call, Tape, play, record

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)
COPY = "copy.db"


async def _grown(*, more: bool) -> None:
    """Make a journal of three runs and a backup of it; `more`: and let the live one go on."""
    async with SqliteJournal(JOURNAL) as journal:
        for tape in (Tape("ended").begin().completes(), Tape("asks").begin().asks(Call("pay")), Tape("old")):
            await journal.release(await play(tape, journal))
        await journal.backup(COPY)
        if more:
            lease = await journal.claim("asks", "worker")
            await write(journal, lease, NOTE, NOTE)
            await journal.release(lease)
            await journal.post("ended", Posted("one", "cancel"))
            await journal.release(await play(Tape("new").begin(), journal))
            await journal.erase("old")


@pytest.fixture
def live(folder: Path) -> bytes:
    """A live journal that went on after its backup; its bytes."""
    asyncio.run(_grown(more=True))
    return Path(JOURNAL).read_bytes()


def drilled(cli: Cli, *options: str) -> tuple[int, dict[str, Any]]:
    done = cli("doctor", "--restore", *(options or (COPY,)), "--json", *AT)
    assert done.err == ""
    return done.code, json.loads(done.out)


def test_a_backup_is_proved_and_what_it_lacks_is_listed(cli: Cli, folder: Path, live: bytes) -> None:
    done = cli("doctor", "--restore", COPY, *AT)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"backup .*copy\.db\n  holds     3 runs, \d+ records: every chain proved", done.out)
    assert re.search(r"asks +llm_loop +parked +approval", done.out)
    assert f"against the live journal {folder}/journal.db" in done.out
    assert re.search(r"a restore would lose 1 run, \d+ records and 1 request in all", done.out)
    assert "would bring back 1 run that the live journal has removed" in done.out
    assert re.search(r"asks +llm_loop +open +lacks its last records +2 +0", done.out)
    assert re.search(r"ended +llm_loop +ended +lacks its last records +0 +1", done.out)
    assert re.search(r"new +llm_loop +open +not in the backup +\d +0", done.out)
    assert re.search(r"old +llm_loop +open +removed from the live journal since +0 +0", done.out)
    assert done.out.endswith("\nthe backup can be restored\n")


def test_the_same_is_said_as_json_and_neither_file_changes(cli: Cli, folder: Path, live: bytes) -> None:
    copy, names = Path(COPY).read_bytes(), sorted(path.name for path in folder.iterdir())
    code, found = drilled(cli)
    assert (code, found["ok"], found["problems"], found["runs"]) == (0, True, [], 3)
    assert [head["run_id"] for head in found["open"]] == ["asks", "old"]
    differences = {one["run_id"]: one for one in found["differences"]}
    assert {run_id: one["state"] for run_id, one in differences.items()} == {
        "ended": "behind",
        "asks": "behind",
        "new": "missing",
        "old": "removed",
    }
    records = sum(one["records"] for one in differences.values())
    assert found["lost"] == {"runs": 1, "records": records, "requests": 1}
    assert records == 2 + differences["new"]["records"]
    assert Path(JOURNAL).read_bytes() == live
    assert Path(COPY).read_bytes() == copy
    assert sorted(path.name for path in folder.iterdir()) == names


def test_a_new_backup_loses_nothing(cli: Cli, folder: Path) -> None:
    asyncio.run(_grown(more=False))
    assert "nothing would be lost" in cli("doctor", "--restore", COPY, *AT).out
    code, found = drilled(cli)
    assert (code, found["differences"]) == (0, [])


def test_a_run_whose_records_are_others_is_a_problem(cli: Cli, folder: Path) -> None:
    record(Tape("run-one").begin())
    asyncio.run(_backed_up())
    for suffix in ("", "-wal", "-shm", "-mark"):
        Path(f"{JOURNAL}{suffix}").unlink(missing_ok=True)
    record(Tape("run-one", conversation_id="another").begin())
    done = cli("doctor", "--restore", COPY, *AT)
    assert done.code == 1
    assert "run run-one holds other records than the live journal" in done.out
    code, found = drilled(cli)
    assert (code, found["differences"][0]["state"]) == (1, "diverged")


async def _backed_up() -> None:
    async with SqliteJournal(JOURNAL) as journal:
        await journal.backup(COPY)


def test_a_damaged_backup_is_a_problem(cli: Cli, folder: Path, live: bytes) -> None:
    content = bytearray(Path(COPY).read_bytes())
    at = content.index(b'"tool":"pay"') if b'"tool":"pay"' in content else len(content) // 2
    content[at] ^= 1
    Path(COPY).write_bytes(content)
    done = cli("doctor", "--restore", COPY, *AT)
    assert done.code == 1
    assert "1 problem" in done.out
    assert "can be restored" not in done.out
    code, found = drilled(cli)
    assert (code, found["ok"], len(found["problems"])) == (1, False, 1)


def test_without_a_live_journal_the_backup_is_proved_alone(cli: Cli, folder: Path, live: bytes) -> None:
    shutil.move(COPY, "kept.db")
    done = cli("doctor", "--restore", "kept.db")
    assert (done.code, done.err) == (0, "")
    assert "there is no live journal to compare it with" in done.out


def test_a_live_journal_that_cannot_be_read_is_a_problem(cli: Cli, folder: Path, live: bytes) -> None:
    Path(JOURNAL).write_bytes(b"not a journal" * 1_000)
    done = cli("doctor", "--restore", COPY, *AT)
    assert done.code == 1
    assert "3 runs" in done.out
    assert "the live journal cannot be compared" in done.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--restore", "none.db"), "there is no backup none.db"),
        (("--restore", COPY, "--journal", "none.db"), "none.db to compare with"),
        (("--restore", COPY, "--salvage", "new.db"), "give one of them"),
    ],
)
def test_what_cannot_be_tested_is_one_sentence(
    cli: Cli,
    one_sentence: Callable[[Any], str],
    folder: Path,
    live: bytes,
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    done = cli("doctor", *arguments)
    assert sentence in one_sentence(done)
    assert done.code == 2
