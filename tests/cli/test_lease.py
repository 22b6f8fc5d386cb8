"""What the commands say of a run whose owner is frozen, before and after its lease has expired."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from tests.cli.recorded import JOURNAL, Tape, play

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)
TTL = 1e6
"""Seconds: its owner writes no heartbeat of its own while a test runs."""


@contextlib.contextmanager
def frozen(tape: Tape, *, silence: float) -> Iterator[None]:
    """Own a run as a process does that has sent no heartbeat for so many seconds."""
    journal = SqliteJournal(JOURNAL, ttl=TTL)
    asyncio.run(play(tape, journal))
    (file,) = Path(f"{JOURNAL}-owners").iterdir()
    packed = struct.pack("<qdd", os.getpid(), TTL, time.monotonic() - silence)
    file.write_bytes(packed + struct.pack("<I", zlib.crc32(packed)))
    try:
        yield
    finally:
        asyncio.run(journal.close())


def test_show_and_list_say_when_the_lease_expires(cli: Cli, folder: Path) -> None:
    with frozen(Tape("run-one", fingerprint=LLM_LOOP.fingerprint).begin(), silence=600_000):
        assert re.search(
            r"held by +\S+ \(no heartbeat; the lease expires in (399\d{3}|400000) s\)",
            cli("runs", "show", "run-one", *AT).out,
        )
        assert "no heartbeat; the lease expires in" in cli("doctor", *AT).out
        shown = json.loads(cli("runs", "show", "run-one", "--json", *AT).out)
        assert 399_000 < shown["lease_expires_in"] <= 400_000


@pytest.mark.parametrize("paused", [False, True])
def test_resume_says_when_the_lease_expires(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, paused: bool
) -> None:
    tape = Tape("run-one", fingerprint=LLM_LOOP.fingerprint).begin()
    with frozen(tape.parks("paused") if paused else tape, silence=600_000):
        done = cli("runs", "resume", "run-one", *AT)
        assert re.search(
            r"run run-one is held by .* \(no heartbeat; the lease expires in (399\d{3}|400000) s\): that process is "
            r"stopped or hangs; resume the run when its lease has expired",
            one_sentence(done),
        )
        assert done.code == 2


def test_when_it_has_expired_nobody_holds_the_run(cli: Cli, folder: Path) -> None:
    with frozen(Tape("run-one", fingerprint=LLM_LOOP.fingerprint).begin(), silence=TTL + 1):
        assert re.search(r"held by +no process", cli("runs", "show", "run-one", *AT).out)
        done = cli("runs", "erase", "run-one", "--yes", *AT)
        assert done.code == 0, done.err
