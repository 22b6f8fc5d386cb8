"""Journals that cannot be used: one clear sentence each, the right exit code, and nothing changed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any, NoReturn

import apsw
import pytest

from orchestrator.journal.sqlite import SqliteJournal, place
from tests.cli.parked import agents, parked, stored
from tests.cli.recorded import JOURNAL, Tape, inbox, record

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)
RUN = ("run", "hi", "--model", "python:agents:looker", "--tool", "agents:look")

READING = [
    ("runs", "list"),
    ("runs", "show", "run-1"),
    ("runs", "events", "run-1"),
    ("runs", "export", "run-1"),
    ("runs", "resume"),
    ("runs", "migrate", "--dry-run"),
]
WRITING = [
    RUN,
    ("runs", "resume", "run-1"),
    ("runs", "fork", "run-1"),
    ("runs", "rollback", "run-1", "--yes"),
    ("runs", "migrate", "--using", "agents:unchanged"),
    ("runs", "approve", "run-1"),
    ("runs", "reject", "run-1"),
    ("runs", "respond", "run-1", "text"),
    ("runs", "cancel", "run-1"),
    ("runs", "pause", "run-1"),
    ("runs", "erase", "run-1", "--yes"),
    ("runs", "prune", "--keep-last", "1", "--yes"),
]
every_command = pytest.mark.parametrize("command", [*READING, *WRITING], ids=" ".join)


def newer() -> None:
    db = apsw.Connection(JOURNAL)
    db.pragma("user_version", 99)
    db.close()


def damaged() -> None:
    Path(JOURNAL).write_bytes(b"x" * 10_000)


SPOILT = [
    (newer, "has version 99"),
    (damaged, "is not a SQLite database, or its first page is damaged"),
]


@every_command
@pytest.mark.parametrize(("spoil", "said"), SPOILT, ids=["newer", "damaged"])
def test_a_journal_that_cannot_be_read_is_left_as_it_is(
    cli: Cli,
    one_sentence: Callable[[Any], str],
    folder: Path,
    command: tuple[str, ...],
    spoil: Callable[[], None],
    said: str,
) -> None:
    agents(folder)
    record(Tape("run-1").begin())
    spoil()
    before = Path(JOURNAL).read_bytes()
    done = cli(*command, *AT)
    line = one_sentence(done)
    assert said in line
    assert f"{folder}/{JOURNAL}" in line
    assert (done.code, Path(JOURNAL).read_bytes()) == (2, before)


@contextmanager
def locked() -> Iterator[None]:
    """Another program writes and does not come to an end."""
    db = apsw.Connection(JOURNAL)
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


@pytest.mark.parametrize("command", [RUN, ("runs", "approve", "run-1")], ids=" ".join)
def test_a_journal_that_another_program_keeps_locked_is_one_sentence(
    cli: Cli,
    one_sentence: Callable[[Any], str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    # Not the 5 s of a process of its own, which test_runs_care waits for.
    monkeypatch.setattr(SqliteJournal, "__init__", partialmethod(SqliteJournal.__init__, busy=0.1))
    parked(folder)
    before = stored()
    with locked():
        done = cli(*command, "--json", *AT)
        line = done.err.splitlines()[-1]  # `run` has said before that another run is open
    assert done.out == ""
    assert line == (
        f"orchestrator: journal {folder}/{JOURNAL} was locked by another process for more than 0.1 s: it is busy, "
        "or frozen"
    )
    assert (done.code, stored(), inbox("run-1")) == (2, before, [])


@every_command
def test_a_network_file_system_is_refused_and_nothing_is_made(
    cli: Cli,
    one_sentence: Callable[[Any], str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    agents(folder)
    record(Tape("run-1").begin())
    mounts = folder / "mountinfo"
    point = str(folder).replace(" ", "\\040")
    mounts.write_text(f"36 35 98:0 / {point} rw - nfs4 server:/ rw\n")
    monkeypatch.setattr(place, "MOUNTS", mounts)
    before = Path(JOURNAL).read_bytes()
    done = cli(*command, *AT)
    assert f"journal folder {folder} is on nfs4, a network file system: choose a local disk" in one_sentence(
        done
    )
    assert (done.code, Path(JOURNAL).read_bytes()) == (2, before)
    fresh = cli(*RUN, "--journal", "new/journal.db")
    assert "is on nfs4" in one_sentence(fresh)
    assert (fresh.code, (folder / "new").exists()) == (2, False)


NAMING = [command for command in [*READING, *WRITING] if "run-1" in command]


@pytest.mark.parametrize("command", NAMING, ids=" ".join)
def test_an_unknown_run_is_one_sentence_that_names_those_like_it(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, command: tuple[str, ...]
) -> None:
    parked(folder, "invoice-17")
    before = stored("invoice-17"), Path(JOURNAL).read_bytes()
    done = cli(*("invoice-71" if word == "run-1" else word for word in command), *AT)
    line = one_sentence(done)
    assert f"no run 'invoice-71' in {folder}/{JOURNAL}; like it: invoice-17; `orchestrator runs list" in line
    assert done.code == 2
    assert (stored("invoice-17"), Path(JOURNAL).read_bytes()) == before


@pytest.mark.parametrize("answer", [("approve",), ("reject",), ("respond", "text")], ids=" ".join)
def test_an_answer_to_another_digest_is_one_sentence_and_posts_nothing(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, answer: tuple[str, ...]
) -> None:
    parked(folder)
    before = stored(), Path(JOURNAL).read_bytes()
    done = cli("runs", answer[0], "run-1", *answer[1:], "--digest", "0123456789ab", *AT)
    assert (
        "the answer about call 1:0 (pay) does not count and was not posted: it is about other arguments"
        in one_sentence(done)
    )
    assert (done.code, inbox("run-1")) == (2, [])
    assert (stored(), Path(JOURNAL).read_bytes()) == before
    assert not (folder / "paid.txt").exists()


@every_command
def test_a_folder_in_place_of_the_journal_is_one_sentence(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, command: tuple[str, ...]
) -> None:
    agents(folder)
    (folder / "place").mkdir()
    done = cli(*command, "--journal", "place")
    assert f"{folder}/place" in one_sentence(done)
    assert (done.code, list((folder / "place").iterdir())) == (2, [])


@pytest.mark.parametrize("command", [*READING, *WRITING[1:]], ids=" ".join)
def test_no_journal_is_one_sentence_and_none_is_made(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, command: tuple[str, ...]
) -> None:
    agents(folder)
    done = cli(*command)
    assert f"there is no journal {folder}/.orchestrator/journal.db: name another" in one_sentence(done)
    assert (done.code, (folder / ".orchestrator").exists()) == (2, False)


# ---- disks ----


@pytest.fixture
def disk(tmp_path: Path, absent: Callable[[str], NoReturn]) -> Iterator[Callable[[str], Path]]:
    """`disk("size=1m")` is a new folder on a disk of its own; needs root."""
    made: list[Path] = []

    def mounted(options: str) -> Path:
        if os.geteuid() != 0:
            absent("mounting needs root")
        point = tmp_path / f"disk{len(made)}"
        point.mkdir()
        command: list[str | Path] = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", point]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            absent(f"mount is refused: {done.stderr.strip()}")
        made.append(point)
        return point

    yield mounted
    for point in made:
        subprocess.run(["umount", "--lazy", point], check=True)


def test_a_folder_that_cannot_be_written_to_is_one_sentence(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, disk: Callable[[str], Path]
) -> None:
    agents(folder)
    if os.geteuid() == 0:  # whom no permission stops
        place_ = disk("ro,size=64k")
    else:
        place_ = folder / "not mine"
        place_.mkdir(mode=0o500)
    done = cli(*RUN, "--journal", str(place_ / JOURNAL))
    assert f"journal {place_}/{JOURNAL} cannot be created: " in one_sentence(done)
    assert (done.code, list(place_.iterdir())) == (2, [])


def test_a_disk_that_is_full_from_the_start_is_one_sentence_and_nothing_is_run(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, disk: Callable[[str], Path]
) -> None:
    agents(folder)
    small = disk("size=32k")
    done = cli(*RUN, "--json", "--journal", str(small / JOURNAL))
    assert "full" in one_sentence(done)
    assert done.code == 2


@pytest.mark.campaign
def test_a_disk_that_fills_up_fails_the_run_which_goes_on_when_there_is_room(
    cli: Cli, folder: Path, disk: Callable[[str], Path]
) -> None:
    agents(folder)
    (folder / "big.py").write_text(
        "from orchestrator import tool\n"
        "@tool(effect='pure', max_result_chars=2_000_000)\n"
        "def look(number: int) -> str:\n    return f'seen {number} ' + 'x' * 300_000\n"
    )
    small = disk("size=700k")
    at = ("--journal", str(small / JOURNAL))
    done = cli(*RUN[:-1], "big:look", "--run-id", "run-1", "--json", *at)
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert f"the disk of journal {small}/{JOURNAL} is full: free space" in done.err
    assert json.loads(done.out)["outcome"] == "failed"
    subprocess.run(["mount", "-o", "remount,size=20m", small], check=True)
    assert cli("runs", "show", "run-1", *at).code == 0
    again = cli("runs", "resume", "run-1", "--json", *at)
    assert (again.code, json.loads(again.out)["output"]) == (0, "looked 3 times")
