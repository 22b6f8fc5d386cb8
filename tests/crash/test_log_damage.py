"""Damage to the write-ahead log after payments were acknowledged: it is reported, and nobody pays twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.errors import Corrupt, StoreDown
from orchestrator.journal.sqlite import SqliteJournal
from tests.crash.life import ROOT
from tests.crash.payer import PAYMENTS, agent

RUNS = ("a", "b")
BLOCK = 512
Damage = Callable[[Path, random.Random], None]

pytestmark = pytest.mark.timeout(900)  # at full size


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """A folder in which two processes paid at the same time and were killed: all that they wrote is in the log."""
    folder = tmp_path_factory.mktemp("killed")
    with contextlib.ExitStack() as killed_at_exit:
        processes = []
        for run in RUNS:
            where = str(folder / "journal.db"), str(folder / "ledger")
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.payer", *where, run],
                cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            killed_at_exit.enter_context(process)
            killed_at_exit.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
    assert sorted((folder / "ledger").read_text().splitlines()) == [
        f"{run} {number}" for run in RUNS for number in range(PAYMENTS - 1)
    ]
    (folder / "journal.db-shm").unlink()  # as it is after a restart, or for a copy
    return folder


async def everything(path: Path) -> dict[str, Any]:
    async with SqliteJournal(path, only_reads=True) as journal:
        return {head.run_id: await journal.load(head.run_id) async for head in journal.runs()}


async def resumed(path: Path) -> None:
    """Resume every run to its end."""
    async with SqliteJournal(path) as journal:
        for run in RUNS:
            result = await agent(journal, path.with_name("ledger"), run).resume(run)
            assert result.outcome == "completed"


def judged(folder: Path, whole: dict[str, Any]) -> str:
    """Resume what was damaged; whether it was `corrupt` or `equal`, and paid what it must in either case."""
    path, ledger = folder / "journal.db", folder / "ledger"
    before = ledger.read_text().splitlines()
    try:
        found = asyncio.run(everything(path))
    except Corrupt:
        for again in (everything, resumed):  # the first look has changed nothing
            with pytest.raises(Corrupt, match="restore a backup"):
                asyncio.run(again(path))
        assert ledger.read_text().splitlines() == before
        return "corrupt"
    assert found == whole
    asyncio.run(resumed(path))
    assert sorted(ledger.read_text().splitlines()) == [
        f"{run} {number}" for run in RUNS for number in range(PAYMENTS)
    ]
    return "equal"


def campaigned(killed: Path, folder: Path, rounds: int, seed: int, damage: Damage) -> None:
    """Damage and judge so many copies, and more until one is corrupt: much of a log is old, and its damage is none."""
    whole = asyncio.run(everything(copied(killed, folder / "whole") / "journal.db"))
    assert sorted(whole) == list(RUNS)
    chance, verdicts = random.Random(seed), Counter[str]()
    while verdicts.total() < rounds or not verdicts["corrupt"]:
        number = verdicts.total()
        copy = copied(killed, folder / "copy")
        damage(copy / "journal.db-wal", chance)
        try:
            verdicts[judged(copy, whole)] += 1
        except BaseException as error:
            error.add_note(f"round {number}")
            raise
        shutil.rmtree(copy)
    print(dict(verdicts))  # noqa: T201  captured, for the report


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def written(raw: bytes | bytearray) -> int:
    """The length of a log without the empty frames at its end, whose damage is none."""
    return len(raw.rstrip(b"\0"))


def flip(log: Path, chance: random.Random) -> None:
    raw = bytearray(log.read_bytes())
    raw[chance.randrange(written(raw))] ^= 1 << chance.randrange(8)
    log.write_bytes(raw)


def truncate(log: Path, chance: random.Random) -> None:
    with log.open("r+b") as file:
        file.truncate(chance.randrange(written(log.read_bytes())))


def zero(log: Path, chance: random.Random) -> None:
    raw = bytearray(log.read_bytes())
    start = chance.randrange(written(raw) // BLOCK) * BLOCK
    raw[start : start + BLOCK] = bytes(BLOCK)
    log.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "small", "full"),
    [(flip, 20, 400), (truncate, 8, 120), (zero, 8, 120)],
    ids=["flip", "truncate", "zero"],
)
def test_a_damaged_log_is_reported_and_nobody_pays_twice(
    killed: Path,
    quick: Path,
    seed: int,
    campaign: Callable[[int, int], int],
    damage: Damage,
    small: int,
    full: int,
) -> None:
    campaigned(killed, quick, campaign(small, full), seed, damage)


def test_a_log_that_ends_at_any_commit_but_the_last_is_reported(killed: Path, quick: Path) -> None:
    raw = (killed / "journal.db-wal").read_bytes()
    page = int.from_bytes(raw[8:12], "big")
    frames = range(32, len(raw), 24 + page)
    # Of the log as it is now, not of what stood there before it was started over: by its salt.
    mine = [start for start in frames if raw[start + 8 : start + 16] == raw[16:24]]
    commits = [start + 24 + page for start in mine if any(raw[start + 4 : start + 8])]
    assert len(commits) >= PAYMENTS
    whole = asyncio.run(everything(copied(killed, quick / "whole") / "journal.db"))
    verdicts = []
    for end in (0, 32, *commits):
        copy = copied(killed, quick / "copy")
        (copy / "journal.db-wal").write_bytes(raw[:end])
        verdicts.append(judged(copy, whole))
        shutil.rmtree(copy)
    assert verdicts == ["corrupt"] * (len(commits) + 1) + ["equal"]


def without(*names: str) -> Callable[[Path], Iterator[str]]:
    """Name the files that a copy has not."""

    def left_out(folder: Path) -> Iterator[str]:
        return (file.name for file in folder.iterdir() if file.name.removeprefix("journal.db") in names)

    return left_out


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (("-wal",), "lacks data that journal.db-mark records"),
        (("-mark",), "journal.db-mark, which records its last commit, is missing"),
        (("-wal", "-mark"), "journal.db-mark, which records its last commit, is missing"),
        (("-wal", "-mark", "-owners"), "journal.db-mark, which records its last commit, is missing"),
        (("",), "is missing or empty"),
    ],
    ids=["the log", "the mark", "both", "a copy of the file alone", "the file"],
)
def test_files_that_are_missing_are_reported_by_every_command(
    killed: Path,
    quick: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    gone: tuple[str, ...],
    words: str,
) -> None:
    copy = quick / "copy"
    shutil.copytree(killed, copy, ignore=lambda folder, names: [*without(*gone)(Path(folder))])
    files = {file.name: file.read_bytes() for file in copy.iterdir() if file.is_file()}
    monkeypatch.chdir(copy)
    for command in (("runs", "list"), ("runs", "show", "a"), ("runs", "export", "a"), ("doctor",)):
        with pytest.raises(SystemExit) as end:
            main([*command, "--journal", str(copy / "journal.db")])
        said = " ".join("".join(capsys.readouterr()).split())
        assert end.value.code not in (0, None), said
        assert words in said
        assert "restore a backup" in said
        assert "Traceback" not in said
    with pytest.raises((Corrupt, StoreDown)):
        asyncio.run(resumed(copy / "journal.db"))
    after = {file.name: file.read_bytes() for file in copy.iterdir() if file.name in files}
    assert after == files, "what was refused was not changed"
