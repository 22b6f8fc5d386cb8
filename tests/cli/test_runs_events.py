"""`runs events`, and following a run."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, write_records
from tests.cli.recorded import JOURNAL, SECRET, Call, Tape, play, record
from tests.ending import rest

Cli = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]
AT = ("--journal", JOURNAL)


def test_events_are_one_line_a_record_without_content(
    cli: Cli, folder: Path, lines: Callable[[str], Any]
) -> None:
    tape = (
        Tape("run-1").begin().calls(Call("look")).asks(Call("pay")).decided("2:0", "respond", content=SECRET)
    )
    record(tape.parks("paused"))
    done = cli("runs", "events", "run-1", *AT)
    assert SECRET not in done.out
    found = lines(cli("runs", "events", "run-1", *AT, "--json").out)
    assert SECRET not in json.dumps(found)
    assert len(done.out.splitlines()) == len(found)
    assert [one["seq"] for one in found] == list(range(len(found)))
    assert "init -> await_llm  start_loop" in done.out
    assert "1:0 look: ok, 0.500 s" in done.out
    assert "respond 2:0 by ann" in done.out
    (said,) = [one for one in found if one["kind"] == "approval"]
    assert said["left_out"] == ["content"]
    assert not any("hash" in one for one in found)


def test_content_is_shown_when_asked_for(cli: Cli, folder: Path, lines: Callable[[str], Any]) -> None:
    tape = Tape("run-1").begin().calls(Call("look"))
    record(tape)
    assert f"content: result: {SECRET}" in cli("runs", "events", "run-1", *AT, "--content").out
    found = lines(cli("runs", "events", "run-1", *AT, "--content", "--json").out)
    drafts = [draft for append in tape.appends for draft in append]
    assert [(one["kind"], one["body"]) for one in found[1:]] == [tuple(draft) for draft in drafts]


def test_events_since_a_number(cli: Cli, folder: Path, lines: Callable[[str], Any]) -> None:
    record(Tape("run-1").begin().calls(Call("look")))
    found = lines(cli("runs", "events", "run-1", *AT, "--since", "5", "--json").out)
    assert [one["seq"] for one in found] == [5, 6, 7, 8, 9, 10, 11]
    assert cli("runs", "events", "run-1", *AT, "--since", "999").out == ""


def read_until(running: subprocess.Popen[str], text: str) -> str:
    assert running.stdout is not None
    for line in running.stdout:
        if text in line:
            return line
    raise AssertionError(f"no {text!r}")


@pytest.mark.canary
def test_following_shows_what_comes_until_the_run_ends(start: Start, folder: Path) -> None:
    async def scenario() -> tuple[str, str, int]:
        async with SqliteJournal(JOURNAL) as journal:
            lease = await play(Tape("run-1").begin(), journal)
            running = start("runs", "events", "run-1", "--follow", *AT)
            await asyncio.to_thread(read_until, running, "init -> await_llm")
            await write_records(journal, lease, Draft("control", {"kind": "pause", "by": "ann", "at": 1.0}))
            line = await asyncio.to_thread(read_until, running, "pause by ann")
            end = {"outcome": "completed", "reason": "none", "t": 1.0}
            await write_records(journal, lease, Draft("ended", end))
            out, err = await asyncio.to_thread(rest, running)
            assert err == ""
            return line, out, running.returncode

    line, out, code = asyncio.run(scenario())
    assert line.split()[0] == "3"
    assert ("completed (none)" in out, code) == (True, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_quietly_on_a_signal(start: Start, folder: Path, number: int) -> None:
    record(Tape("run-1").begin())
    running = start("runs", "events", "run-1", "--follow", *AT)
    assert running.stderr is not None
    assert running.stderr.readline() == (
        "orchestrator: the run has no owner; "
        "`orchestrator runs resume run-1 --model SPEC --journal journal.db` resumes it\n"
    )
    running.send_signal(number)
    out, err = rest(running)
    assert (len(out.splitlines()), err, running.returncode) == (3, "", 0)


def test_following_ends_when_its_reader_goes_away_though_nothing_comes(start: Start, folder: Path) -> None:
    record(Tape("run-1").begin())
    running = start("runs", "events", "run-1", "--follow", *AT)
    assert running.stdout is not None
    assert running.stderr is not None
    assert "the run has no owner" in running.stderr.readline()  # all there is was printed
    running.stdout.close()
    running.wait(timeout=60)
    assert (running.returncode, running.stderr.read()) == (141, "")


def test_following_into_a_file_is_not_ended_by_it(start: Start, folder: Path) -> None:
    record(Tape("run-1").begin().completes())
    with Path("out").open("wb") as out:
        assert start("runs", "events", "run-1", "--follow", *AT, stdout=out).wait(timeout=60) == 0
    assert "completed (none)" in Path("out").read_text()
