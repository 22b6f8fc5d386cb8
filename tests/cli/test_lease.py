"""What the commands say of a run whose owner is frozen, before and after its lease has expired."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import keyboard
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.rlm.code_mode import CODE_MODE
from tests.cli import recorded
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
    recorded.silence(silence)
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
        said = cli("runs", "show", "run-one", *AT).out
        assert re.search(
            r"held by +no process \(the lease of \S+ has expired, and that process still exists\)", said
        )
        shown = json.loads(cli("runs", "show", "run-one", "--json", *AT).out)
        assert (shown["owner"], shown["expired_owner"]) == (None, "worker-1")
        done = cli("runs", "erase", "run-one", "--yes", *AT)
        assert done.code == 0, done.err


RESUMED = {
    "runs": Tape("run-one", fingerprint=LLM_LOOP.fingerprint).begin(),
    "pipeline": Tape("run-one", graph="pipeline", fingerprint=PIPELINE.fingerprint).begin(),
    "rlm": Tape("run-one", graph="code_mode", fingerprint=CODE_MODE.fingerprint).begin(),
    "ralph": Tape("run-one", graph="ralph", fingerprint=RALPH.fingerprint).begin(),
}
"""Group of commands -> a run that its `resume` takes."""


@pytest.mark.parametrize("group", RESUMED)
def test_a_run_is_not_taken_from_a_process_that_still_exists(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, group: str
) -> None:
    with frozen(RESUMED[group], silence=TTL + 1):
        done = cli(group, "resume", "run-one", *AT)
        assert done.code == 2
        assert re.search(
            "run run-one belongs to worker-1, whose lease has expired although its process still exists: it is stopped "
            "or hangs, and a call of the run may still be under way there; end that process, then resume the run, or "
            "give --take-over",
            one_sentence(done),
        )
        assert "still exists" not in cli(group, "resume", "run-one", "--take-over", *AT).err


@pytest.mark.parametrize(("answer", "resumed"), [("y\n", True), ("\n", False), ("", False)])
def test_a_person_on_a_terminal_decides_whether_the_run_is_taken_over(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str, resumed: bool
) -> None:
    monkeypatch.setattr(keyboard, "present", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    with frozen(RESUMED["runs"], silence=TTL + 1):
        done = cli("runs", "resume", "run-one", *AT)
        assert "Take the run over? [y/N]" in done.out
        assert ("nothing was resumed" not in done.err) is resumed


def test_the_run_of_a_process_that_is_gone_is_resumed_without_a_question(cli: Cli, folder: Path) -> None:
    journal = SqliteJournal(JOURNAL)
    asyncio.run(play(RESUMED["runs"], journal))
    asyncio.run(journal.close())
    assert json.loads(cli("runs", "show", "run-one", "--json", *AT).out)["expired_owner"] is None
    assert "still exists" not in cli("runs", "resume", "run-one", *AT).err


def test_the_status_of_an_engine_says_whether_its_process_still_exists(cli: Cli, folder: Path) -> None:
    engine = Tape("engine-1", graph="engine", fingerprint="", engine={"name": "front", "host": "h", "pid": 7})
    with frozen(engine.begin(), silence=TTL + 1):
        said = cli("operate", "status", *AT).out
        assert "its lease has expired, but its process still exists: it is stopped or hangs" in said
        assert "is gone" not in said
    said = cli("operate", "status", *AT).out
    assert "is dead: its process is gone" in said
