"""Leases on SQLite: a heartbeat that expires, beside the lock that shows a process which ended."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, Held
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.sqlite.error_mapping import LockHolder, _exclusive
from orchestrator.journal.sqlite.owner import LEAST_TTL, SqlitePresence, _state
from orchestrator.testing.journal_contract import BODY, NOTE, write

OWNER = """
import asyncio, sys
from orchestrator.errors import Fenced
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft

async def main():
    journal = SqliteJournal("journal.db", ttl=2)
    lease = await journal.create("run", "worker", {"graph": "g"})
    print("owns", flush=True)
    for line in sys.stdin:
        try:
            await journal.append(lease, [Draft("note", {})])
            print("wrote", flush=True)
        except Fenced as fenced:
            print(fenced, flush=True)

asyncio.run(main())
"""
TAKEN = (
    "run 'run' cannot be continued here: another process has claimed it, and lease epoch 1 is out of date; "
    "see `orchestrator docs durability`\n"
)


class Owner:
    """A process that owns a run, and writes a record each time it is asked to."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        (self._file,) = (folder / "journal.db-owners").iterdir()
        assert self.said() == "owns\n"

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def writes(self) -> str:
        """Let it append, and return what it says of that."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.said()

    def freeze(self, *, silence: float, ttl: float) -> None:
        """Stop it, as if it had sent its last heartbeat so many seconds ago."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
        self._file.write_bytes(heartbeat(self.process.pid, ttl, time.monotonic() - silence))

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def forget_heartbeat(self) -> None:
        """Leave its file as a version without heartbeats has it."""
        self._file.write_bytes(b"")


def heartbeat(pid: int, ttl: float, at: float) -> bytes:
    packed = struct.pack("<qdd", pid, ttl, at)
    return packed + struct.pack("<I", zlib.crc32(packed))


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as process:
        while not list(tmp_path.glob("journal.db-owners/*")):
            assert process.poll() is None
            time.sleep(0.01)
        yield Owner(process, tmp_path)
        process.kill()


async def test_the_run_of_a_frozen_owner_can_be_claimed_when_its_lease_has_expired(
    tmp_path: Path, owner: Owner
) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        owner.freeze(silence=11, ttl=10)
        assert (await journal.head("run")).owner is None
        lease = await journal.claim("run", "other")
        await write(journal, lease, NOTE)
        records = await journal.load("run")
        owner.wake()
        assert owner.writes() == TAKEN
        assert await journal.load("run") == records
        await write(journal, lease, NOTE)


async def test_before_that_the_refusal_and_the_head_say_when_it_expires(tmp_path: Path, owner: Owner) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        owner.freeze(silence=600, ttl=1_000)
        with pytest.raises(Held) as refused:
            await journal.claim("run", "other")
        with pytest.raises(Held, match="its process"):
            await journal.erase("run")
        head = await journal.head("run")
        assert head.owner == "worker"
        assert head.lease_expires_in is not None
        assert 300 < head.lease_expires_in <= 400
        first, _, then = str(refused.value).partition("; ")
        assert first == "run 'run' is held by worker"
        assert then.startswith(f"its process {owner.process.pid} has sent no heartbeat for 6")
        assert then.endswith(
            " s; after that, another process can resume the run; see `orchestrator docs durability`"
        )


async def test_an_owner_that_wakes_before_anyone_took_its_run_keeps_it(tmp_path: Path, owner: Owner) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        owner.freeze(silence=11, ttl=10)
        assert (await journal.head("run")).owner is None
        owner.wake()
        assert owner.writes() == "wrote\n"
        while (await journal.head("run")).owner is None:  # noqa: ASYNC110  until its next heartbeat
            await asyncio.sleep(0.01)
        with pytest.raises(Held):
            await journal.claim("run", "other")


async def test_an_owner_of_an_erased_run_is_fenced_when_it_wakes(tmp_path: Path, owner: Owner) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        owner.freeze(silence=11, ttl=10)
        await journal.erase("run")
        await journal.create("run", "other", BODY)
        owner.wake()
        assert owner.writes() == TAKEN
        assert len(await journal.load("run")) == 1


async def test_an_idle_owner_renews_its_lease_without_a_write_to_the_database(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db", ttl=LEAST_TTL) as owner:
        await owner.create("run", "worker", BODY)
        (file,) = (tmp_path / "journal.db-owners").iterdir()
        seen, log = {file.read_bytes()}, (tmp_path / "journal.db-wal").read_bytes()
        while len(seen) < 6:  # longer than a ttl
            await asyncio.sleep(0.01)
            seen.add(file.read_bytes())
        async with SqliteJournal(tmp_path / "journal.db", only_reads=True) as reader:
            while (await reader.head("run")).owner != "worker":  # noqa: ASYNC110  the next heartbeat may be late
                await asyncio.sleep(0.01)
        assert (tmp_path / "journal.db-wal").read_bytes() == log
        assert (await owner.head("run")).lease_expires_in is None


async def test_an_owner_of_an_earlier_version_keeps_its_runs_while_it_lives(
    tmp_path: Path, owner: Owner
) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        owner.freeze(silence=11, ttl=10)
        owner.forget_heartbeat()
        head = await journal.head("run")
        assert (head.owner, head.lease_expires_in) == ("worker", None)
        with pytest.raises(Held, match="wait until it is released"):
            await journal.claim("run", "other")
        owner.process.kill()
        owner.process.wait()
        await journal.claim("run", "other")


async def test_a_killed_owner_has_no_lease_however_new_its_heartbeat_is(tmp_path: Path, owner: Owner) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        owner.freeze(silence=0, ttl=1_000)
        owner.process.kill()
        owner.process.wait()
        await journal.claim("run", "other")


@pytest.mark.parametrize("ttl", [0, -1, 0.9, math.nan])
def test_a_ttl_below_a_second_is_refused(tmp_path: Path, ttl: float) -> None:
    with pytest.raises(ConfigError, match="number of seconds, 1 or more"):
        SqliteJournal(tmp_path / "journal.db", ttl=ttl)


@given(st.binary(max_size=40))
def test_a_heartbeat_that_cannot_be_read_proves_nothing(content: bytes) -> None:
    state = _state(content)
    assert (state.expires_in, state.overdue, state.warning) == (math.inf, False, "")


@given(st.floats(1, 1_000), st.floats(-1e6, 1e6))
def test_a_lease_is_valid_for_its_ttl_after_the_last_heartbeat(ttl: float, silence: float) -> None:
    began = time.monotonic()
    state = _state(heartbeat(7, ttl, began - silence))
    most = silence + time.monotonic() - began
    assert state.pid == 7
    if silence > ttl:
        assert not state.alive
    elif most < ttl - 0.001:
        assert state.alive
    if most < 0:  # the clock of another time namespace
        assert not state.overdue


def test_a_presence_that_ended_sends_no_heartbeat(tmp_path: Path) -> None:
    presence = SqlitePresence(tmp_path / "owners")
    assert presence.renew() is None
    presence.begin()
    assert presence.renew() is not None
    presence.end()
    assert presence.renew() is None


LOCKS = """1: POSIX  ADVISORY  WRITE 4711 fd:01:99 120 120
1: -> POSIX  ADVISORY  WRITE 4712 fd:01:99 120 120
2: POSIX  ADVISORY  READ 4713 fd:01:99 123 123
3: POSIX  ADVISORY  WRITE 4714 fd:01:98 120 120
4: FLOCK  ADVISORY  WRITE 4715 fd:01:99 0 EOF
5: POSIX  ADVISORY  WRITE 4716 fd:01:99 121 121
6: OFDLCK ADVISORY  WRITE -1 fd:01:99 120 120
"""


def test_the_holder_of_a_write_lock_is_the_one_that_has_it_and_not_one_that_waits() -> None:
    assert list(_exclusive(LOCKS, "fd:01:99")) == [(120, 4711), (121, 4716)]
    assert "kill -CONT 5" in LockHolder(5, stopped=True).hint
    assert "stopped" not in LockHolder(5, stopped=False).hint
