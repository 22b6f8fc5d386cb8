from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from orchestrator.cli.rlm import isolation
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Posted
from orchestrator.repl.isolation import Isolation
from orchestrator.runtime.runs.listing import last_check
from orchestrator.runtime.runs.runs import Runs
from orchestrator.testing.journal_contract import NOTE, write
from tests.cli.recorded import JOURNAL, Call, Tape, play, record

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)


@pytest.fixture(scope="module")
def probed() -> Isolation | str:
    """The isolation of a worker for models' code on this machine."""
    return asyncio.run(isolation.probed())


@pytest.fixture(autouse=True)
def probed_once(probed: Isolation | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no worker for each command: none of these tests changes what it finds."""

    async def known() -> Isolation | str:
        return probed

    monkeypatch.setattr(isolation, "probed", known)


def examined(cli: Cli) -> tuple[int, dict[str, Any]]:
    done = cli("doctor", "--json", *AT)
    return done.code, json.loads(done.out)


def test_a_healthy_journal_is_described(cli: Cli, folder: Path) -> None:
    record(Tape("run-one").begin().completes(), Tape("run-two").begin().asks(Call("pay")), Tape("run-three"))
    done = cli("doctor", *AT)
    assert (done.code, done.err) == (0, "")
    assert f"journal {folder}/journal.db" in done.out
    assert "mode      0600" in done.out
    assert re.search(r"size      \d.* KiB, log \S+ \S+, blobs 0 B", done.out)
    assert re.search(r"store     version 3, SQLite 3\.\d+", done.out)
    assert "journal_mode=wal, synchronous=2" in done.out
    assert re.search(r"holds     3 runs, \d\d records: every chain proved", done.out)
    assert re.search(r"run-two +llm_loop +parked +approval +- +", done.out)
    assert done.out.endswith("\nhealthy\n")
    code, found = examined(cli)
    assert (code, found["ok"], found["problems"], found["mode"]) == (0, True, [], "0600")
    assert [head["run_id"] for head in found["open"]] == ["run-two", "run-three"]
    assert found["pragmas"]["synchronous"] == 2
    assert found["sizes"]["db"] == Path(JOURNAL).stat().st_size


def test_the_last_verdict_is_kept_in_the_journal_beside_its_runs(cli: Cli, folder: Path) -> None:
    async def kept() -> tuple[Any, list[str], int]:
        async with SqliteJournal(JOURNAL, only_reads=True) as journal:
            listed = [head.run_id for head in await Runs(journal).list()]
            return await last_check(journal), listed, (await journal.count()).total

    record(Tape("run-one").begin().completes())
    before = asyncio.run(kept())
    assert (before[0], before[1], before[2]) == (None, ["run-one"], 1)
    assert cli("doctor", *AT).code == 0
    check, listed, total = asyncio.run(kept())
    assert (check.runs, check.count, check.problems, listed, total) == (1, 0, (), ["run-one"], 1)
    Path(JOURNAL).chmod(0o644)
    assert cli("doctor", *AT).code == 1
    check = asyncio.run(kept())[0]
    assert check.count == 1
    assert "mode 0644, others may read it" in check.problems[0]
    Path(JOURNAL).chmod(0o600)
    assert cli("runs", "list", *AT).out.count("doctor") == 0
    assert "no engine" in cli("operate", "status", *AT).err


def test_who_holds_a_run_is_said(cli: Cli, folder: Path) -> None:
    async def held() -> Any:
        async with SqliteJournal(JOURNAL) as journal:
            await play(Tape("run-one"), journal)
            return await asyncio.to_thread(cli, "doctor", *AT)

    assert re.search(r"run-one +llm_loop +open +- +worker-1", asyncio.run(held()).out)


def test_a_run_claimed_again_and_again_is_said(cli: Cli, folder: Path) -> None:
    async def claimed() -> None:
        async with SqliteJournal(JOURNAL) as journal:
            await journal.release(await play(Tape("run-one").begin(), journal))
            for _ in range(3):
                await journal.release(await journal.claim("run-one", "worker-2"))

    asyncio.run(claimed())
    assert "claimed 3 times without progress" in cli("doctor", *AT).out


def tampered() -> None:
    db = apsw.Connection(JOURNAL)
    db.execute("UPDATE record SET kind='kind' WHERE key = (SELECT max(key) FROM record)")
    db.close()


def readable_by_all() -> None:
    Path(JOURNAL).chmod(0o644)


def too_new() -> None:
    db = apsw.Connection(JOURNAL)
    db.pragma("user_version", 99)
    db.close()


PROBLEMS = [
    (tampered, "run 'run-one': record 1 is damaged"),
    (readable_by_all, "has mode 0644, others may read it: chmod 600 "),
    (too_new, "has version 99"),
]


@pytest.mark.parametrize(("spoil", "said"), PROBLEMS)
def test_problems_are_listed(cli: Cli, folder: Path, spoil: Callable[[], None], said: str) -> None:
    record(Tape("run-one").begin())
    spoil()
    done = cli("doctor", *AT)
    assert (done.code, done.err) == (1, "")
    assert re.search(r"1 problem\n  - .*" + re.escape(said), done.out)
    code, found = examined(cli)
    assert (code, found["ok"], len(found["problems"])) == (1, False, 1)


def test_a_file_that_is_no_journal_is_a_problem_not_a_traceback(cli: Cli, folder: Path) -> None:
    Path(JOURNAL).write_bytes(b"x" * 10_000)
    Path(JOURNAL).chmod(0o600)
    code, found = examined(cli)
    assert (code, found["ok"]) == (1, False)
    assert "pragmas" not in found


def test_a_journal_that_is_not_there_is_one_sentence(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    done = cli("doctor", "--json", *AT)
    assert f"there is no journal {folder}/journal.db" in one_sentence(done)
    assert (done.code, Path(JOURNAL).exists()) == (2, False)


def test_a_cut_log_is_a_problem_and_what_is_left_can_be_salvaged(cli: Cli, folder: Path) -> None:
    killed = folder / "killed" / "journal.db"
    killed.parent.mkdir()
    at = ("--journal", str(killed))

    async def recorded() -> None:
        async with SqliteJournal(JOURNAL) as journal:
            await play(Tape("run-one").begin().completes(), journal)
            await play(Tape("run-two").begin().asks(Call("pay")), journal)
            for suffix in ("", "-wal", "-mark"):
                shutil.copyfile(f"{JOURNAL}{suffix}", f"{killed}{suffix}")

    asyncio.run(recorded())
    log = Path(f"{killed}-wal")
    os.truncate(log, len(log.read_bytes().rstrip(b"\0")) - 1)  # empty frames end the file
    done = cli("doctor", *at)
    assert done.code == 1
    assert "lacks data that journal.db-mark records as acknowledged: run 'run-two' has" in done.out
    assert "orchestrator doctor --salvage NEW.db" in done.out
    assert "healthy" not in done.out

    done = cli("doctor", "--salvage", "left.db", *at)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"left\.db: 2 runs, \d+ records, every chain proved", done.out)
    assert "a run that is resumed repeats them" in done.out
    assert re.search(r"run-two +llm_loop", done.out)
    assert cli("doctor", "--journal", "left.db").code == 0
    assert cli("doctor", *at).code == 1, "the damaged one is as it was"

    done = cli("doctor", "--salvage", "left.db", *at)
    assert done.code == 2
    assert "left.db exists and was not overwritten" in done.err
    done = cli("doctor", "--salvage", "other.db", "--json", *at)
    assert json.loads(done.out)["runs"] == 2


def test_a_tampered_blob_is_found(cli: Cli, folder: Path) -> None:
    import hashlib

    content = b"prior content"
    name = hashlib.sha256(content).hexdigest()

    async def made() -> None:
        async with SqliteJournal(JOURNAL) as journal:
            lease = await play(Tape("run-one"), journal)
            waiting = journal.append(lease, Tape("x").begin().appends[0], {name: content})
            assert waiting is not None
            await waiting

    asyncio.run(made())
    assert examined(cli)[0] == 0
    db = apsw.Connection(JOURNAL)
    db.execute("UPDATE blob SET content=?", (b"other content",))
    db.close()
    code, found = examined(cli)
    assert (code, [problem[:20] for problem in found["problems"]]) == (1, [f"blob '{name[:14]}"])


def test_how_far_code_of_models_is_locked_up_is_said(cli: Cli, folder: Path) -> None:
    record(Tape("run-one").begin().completes())
    done = cli("doctor", *AT)
    level = re.search(r"code of models\n  isolation (full|partial|limits): .+\n  locks     (.+)\n", done.out)
    assert level is not None
    found = examined(cli)[1]["isolation"]
    assert found["level"] == level[1]
    assert level[2].split(", ") == [name for name, lock in found["locks"].items() if lock["holds"]]


def test_how_far_code_is_locked_up_is_said_without_a_journal_too(cli: Cli, folder: Path) -> None:
    done = cli("doctor", *AT)
    assert done.code == 2
    assert "  isolation " in done.out
    assert "there is no journal" in done.err


def test_the_interpreter_and_its_garbage_collection_are_shown(cli: Cli, folder: Path) -> None:
    record(Tape("run-one").begin().completes())
    done = cli("doctor", *AT)
    shown = re.search(
        r"python\n  this process  (.+)\n  a worker      sets (.+); see `orchestrator docs workers`", done.out
    )
    assert shown is not None
    assert examined(cli)[1]["python"] == shown[1]
    assert shown[2] == "50,000, 20, 50"


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
