"""kill -9 of a process that stores in a memory: what it was told is stored is there, whole, once and in order."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.journal.sqlite.conversation import SqliteMemory

STORING = """
import asyncio, os, sys
from orchestrator.journal.sqlite.conversation import SqliteMemory
from orchestrator.llm.message import Message
from orchestrator.llm.port import FailureEpisode

async def one(memory, key, begin):
    for number in range(begin, begin + 10_000):
        said = [Message("user", f"{key} {number}"), Message("assistant", "x" * (number % 7) * 1_000)]
        await memory.store(key, said)
        os.write(1, f"{key} {number}\\n".encode())
        if number % 5 == 0:
            await memory.store_failure(key, FailureEpisode("r", "llm_error", str(number), 1))
            await memory.compact(key, Message("system", f"summary {number}"))

async def main(path, begin):
    async with SqliteMemory(path) as memory:
        await asyncio.gather(*(one(memory, key, begin) for key in "abc"))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def killed(path: Path, environment: dict[str, str], begin: int, after: int) -> list[tuple[str, int]]:
    """Let a process store, kill it behind so many words of it; return what it said is stored."""
    worker = subprocess.Popen(
        [sys.executable, "-c", STORING, path, str(begin)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    said = [worker.stdout.readline() for _ in range(after)]
    worker.kill()
    said += worker.stdout.readlines()
    worker.stdout.close()
    assert worker.wait() == -signal.SIGKILL
    whole = [line.split() for line in said if line.endswith("\n")]
    return [(key, int(number)) for key, number in whole]


async def stored(path: Path, key: str) -> list[int]:
    """Return the numbers of what is there, each exchange proved to be whole."""
    async with SqliteMemory(path, max_messages=0, max_chars=0) as memory:
        shown = [message for message in await memory.prepare(key, ()) if message.role != "system"]
    if shown and shown[-1].text.startswith("Since then"):
        shown.pop()
    numbers = [int(message.text.split()[1]) for message in shown[::2]]
    for number, answer in zip(numbers, shown[1::2], strict=True):
        assert answer.text == "x" * (number % 7) * 1_000
    return numbers


@pytest.mark.canary
def test_a_kill_at_any_moment_loses_nothing_that_was_acknowledged(
    tmp_path: Path, environment: dict[str, str], seed: int, campaign: Callable[[int, int], int]
) -> None:
    chance = random.Random(seed)
    for number in range(campaign(2, 20)):
        path = tmp_path / f"{number}.db"
        acknowledged: list[tuple[str, int]] = []
        for life in range(4):  # each continues in the file that the last one was killed over
            acknowledged += killed(path, environment, life * 10_000, chance.randrange(0, 60))
            for key in "abc":
                there = asyncio.run(stored(path, key))
                wanted = {one for of, one in acknowledged if of == key}
                assert there == sorted(set(there)), "once each, in order"
                assert wanted <= set(there), "nothing acknowledged is lost"
                assert len(set(there) - wanted) <= life + 1, (
                    "at most what each life had under way came besides"
                )
        assert acknowledged
