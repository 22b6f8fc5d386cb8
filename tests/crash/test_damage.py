"""T8: bits that flip, in the file, its log, its mark or a blob: never a silently different read."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import JournalError
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Posted
from orchestrator.testing.journal_contract import BODY, ENDED, PARKED, digest, write
from tests.crash.invariants import drafts
from tests.journal import format_1

RUNS = 4
BIG = random.Random(1).randbytes(1 << 20)
SMALL = b"prior content" * 20


async def everything(journal: SqliteJournal) -> dict[str, Any]:
    """Read all there is, each question by itself: the answer, or that it was refused."""
    asked: dict[str, Any] = {}
    for number in range(RUNS):
        run = f"run {number}"
        asked[f"records {run}"] = journal.load(run)
        asked[f"head {run}"] = journal.head(run)
        asked[f"inbox {run}"] = journal.inbox(run)
    asked |= {f"blob {len(content)}": journal.blob(digest(content)) for content in (BIG, SMALL)}
    answers: dict[str, Any] = {}
    for question, answer in asked.items():
        try:
            answers[question] = await answer
        except JournalError as refusal:
            answers[question] = refusal
    return answers


async def made(path: Path, *, log_only: bool) -> dict[str, Any]:
    """Write a journal, let go of it without its log being copied back if asked, and return all there is."""
    journal = SqliteJournal(path)
    for number in range(RUNS):
        lease = await journal.create(f"run {number}", "me", BODY)
        for batch in range(8):
            await write(journal, lease, *drafts(f"run {number}", str(batch), 2))
        await write(journal, lease, PARKED, blobs={digest(content): content for content in (BIG, SMALL)})
        await journal.post(f"run {number}", Posted("a", "approve", {"digest": "d"}, at=1.0))
        await journal.release(lease)
    lease = await journal.claim("run 3", "me")
    await write(journal, lease, ENDED)
    await journal.release(lease)
    whole = await everything(journal)
    if log_only:
        shutil.copytree(path.parent, path.parent.with_name("kept"))
    await journal.close()
    if log_only:
        shutil.rmtree(path.parent)
        path.parent.with_name("kept").rename(path.parent)
        path.with_name(path.name + "-shm").unlink()
    return whole


async def judged(path: Path, whole: dict[str, Any]) -> str:
    """Open a damaged journal and compare: `refused`, `partly refused` or `the same`."""
    journal = SqliteJournal(path)
    try:
        await journal.open()
        answers = await everything(journal)
    except JournalError:
        return "refused"
    finally:
        await journal.close()
    different = [question for question, answer in answers.items() if answer != whole[question]]
    silent = [question for question in different if not isinstance(answers[question], Exception)]
    assert not silent, f"a silently different read of {silent}"
    return "partly refused" if different else "the same"


async def upgraded(path: Path) -> dict[str, Any]:
    """Upgrade a closed journal from version 1, write each run once more, and return all there is."""
    format_1.rewrite(path)
    async with SqliteJournal(path) as journal:
        for number in range(RUNS):
            lease = await journal.claim(f"run {number}", "heir")
            await write(journal, lease, *drafts(f"run {number}", "later", 3))
            await journal.release(lease)
        return await everything(journal)


def flips(
    quick: Path, rounds: int, seed: int, suffix: str, *, log_only: bool, upgrade: bool = False
) -> Counter[str]:
    path = quick / "store" / "journal.db"
    whole = asyncio.run(made(path, log_only=log_only))
    if upgrade:
        whole = asyncio.run(upgraded(path))
    targets = sorted((quick / "store").glob(f"journal.db{suffix}"))
    assert targets
    chance, verdicts = random.Random(seed), Counter[str]()
    for number in range(rounds):
        copy = quick / "copy"
        shutil.copytree(quick / "store", copy)
        target = copy / chance.choice(targets).relative_to(quick / "store")
        raw = bytearray(target.read_bytes())
        at, bit = chance.randrange(len(raw)), 1 << chance.randrange(8)
        raw[at] ^= bit
        target.write_bytes(raw)
        try:
            verdicts[asyncio.run(judged(copy / "journal.db", whole))] += 1
        except AssertionError as error:
            error.add_note(f"flip {number}: {target.name} byte {at} bit {bit}")
            raise
        shutil.rmtree(copy)
    print(dict(verdicts))  # noqa: T201  captured, for the report
    return verdicts


@pytest.mark.parametrize("upgrade", [False, True], ids=["new", "upgraded"])
def test_a_flipped_bit_in_the_file_is_never_read_as_something_else(
    quick: Path, seed: int, campaign: Callable[[int, int], int], upgrade: bool
) -> None:
    verdicts = flips(quick, campaign(60, 2000), seed, "", log_only=False, upgrade=upgrade)
    assert verdicts["partly refused"] + verdicts["refused"] > verdicts.total() / 10


@pytest.mark.canary
def test_a_flipped_bit_in_a_blob_file_is_refused(
    quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    verdicts = flips(quick, campaign(10, 200), seed, "-blobs/*", log_only=False)
    assert set(verdicts) == {"partly refused"}


@pytest.mark.canary
def test_a_flipped_bit_in_the_log_is_refused(
    quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    verdicts = flips(quick, campaign(40, 1000), seed, "-wal", log_only=True)
    assert verdicts["refused"] > verdicts.total() / 2


def test_a_flipped_bit_in_the_mark_costs_nothing_or_is_refused(
    quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    verdicts = flips(quick, campaign(40, 1000), seed, "-mark", log_only=True)
    assert set(verdicts) <= {"refused", "the same"}
