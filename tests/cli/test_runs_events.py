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

from orchestrator import Agent, tool
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, write_records
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.runs.runs import Runs
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


# ---- the tree ----

TREE = ("p", "p:1:0", "p:1:0:1:0")


@tool(effect="irreversible", approval=True)
def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


def front(journal: SqliteJournal) -> Agent[Any, Any]:
    """An agent whose child run has a child run that asks before it pays."""

    def once(name: str, **arguments: str) -> FunctionLLM:
        return FunctionLLM(
            lambda request: "done" if request.messages[-1].role == "tool" else call(name, **arguments)
        )

    payer = Agent(once("pay", to=SECRET), name="payer", tools=[pay], observers=())
    billing = Agent(
        once("payer", task="pay"), name="billing", tools=[payer.as_tool("payer", "Pay.")], observers=()
    )
    tools = [billing.as_tool("bill", "Bill.")]
    return Agent(once("bill", task="bill"), name="front", tools=tools, journal=journal, observers=())


@pytest.fixture
def waiting(folder: Path) -> None:
    """Leave the run `p`, whose grandchild asks."""

    async def leave() -> None:
        async with SqliteJournal(folder / JOURNAL) as journal:
            await front(journal).run("go", run_id="p", wait="never")

    asyncio.run(leave())


@pytest.mark.usefixtures("waiting")
def test_the_records_of_a_tree_are_printed_with_their_runs(cli: Cli, lines: Callable[[str], Any]) -> None:
    found = lines(cli("runs", "events", "p", "--tree", "--json", *AT).out)
    assert SECRET not in json.dumps(found)
    for name in TREE:
        alone = lines(cli("runs", "events", name, "--json", *AT).out)
        assert [{"run_id": name} | one for one in alone] == [one for one in found if one["run_id"] == name]
    assert {one["run_id"] for one in found} == set(TREE)
    printed = cli("runs", "events", "p", "--tree", *AT).out.splitlines()
    assert [line.split()[:2] for line in printed] == [[one["run_id"], str(one["seq"])] for one in found]
    assert len({line.index(" created ") for line in printed if " created " in line}) == 1, "in columns"
    whole = cli("runs", "events", "p", "--tree", "--content", *AT).out
    assert any(line.startswith("p:1:0:1:0 ") and SECRET in line for line in whole.splitlines())
    below = lines(cli("runs", "events", "p:1:0", "--tree", "--json", *AT).out)
    assert {one["run_id"] for one in below} == set(TREE[1:])


def test_the_records_of_a_tree_are_printed_in_the_order_of_time(
    cli: Cli, folder: Path, lines: Callable[[str], Any]
) -> None:
    at = {"p": 1_000.0, "p:1:0": 1_000.5}
    below = Tape("p:1:0", began=at["p:1:0"], parent_run_id="p").begin().completes()
    record(Tape("p", began=at["p"]).begin().completes(), below)
    found = lines(cli("runs", "events", "p", "--tree", "--json", *AT).out)
    for one in found:  # a record without a time comes after the one before it in its run
        at[one["run_id"]] = one["at"] = one["body"].get("at", at[one["run_id"]])
    assert [one["at"] for one in found] == sorted(one["at"] for one in found)
    order = "".join("c" if one["run_id"] == "p:1:0" else "p" for one in found)
    assert "pc" in order, order
    assert "cp" in order, order


@pytest.mark.usefixtures("waiting")
def test_the_records_of_a_tree_are_continued_at_a_number_of_each_run(
    cli: Cli, lines: Callable[[str], Any]
) -> None:
    since = ("--since", "5", "--since", "p:1:0=7", "--since", "p:1:0:1:0=999")
    found = lines(cli("runs", "events", "p", "--tree", "--json", *since, *AT).out)
    assert min(one["seq"] for one in found if one["run_id"] == "p") == 5
    assert min(one["seq"] for one in found if one["run_id"] == "p:1:0") == 7
    assert {one["run_id"] for one in found} == {"p", "p:1:0"}
    for wrong, why in (
        (
            "p:1:0=x",
            "since is p:1:0=x; it must be the number of a record, 0 or more, or RUN=NUMBER with --tree",
        ),
        ("nothing=1", "no run 'nothing'"),
    ):
        refused = cli("runs", "events", "p", "--tree", "--since", wrong, *AT)
        assert refused.code == 2
        assert why in refused.err
    refused = cli("runs", "events", "p", "--since", "p:1:0=3", *AT)
    assert refused.code == 2
    assert "since is p:1:0=3; a number without a run is allowed, or add --tree" in refused.err


@pytest.mark.usefixtures("waiting")
def test_following_a_tree_shows_the_child_runs_until_the_run_at_the_top_ends(
    start: Start, folder: Path
) -> None:
    async def scenario() -> tuple[str, str, int]:
        running = start("runs", "events", "p", "--tree", "--follow", "--since", "999", *AT)
        await asyncio.to_thread(read_until, running, "asked")
        async with SqliteJournal(folder / JOURNAL) as journal:
            runs = Runs(journal)
            (question,) = await runs.pending("p")
            await runs.approve(question.run_id, digest=question.digest)
            await front(journal).resume("p")
        out, err = await asyncio.to_thread(rest, running)
        return out, err, running.returncode

    out, err, code = asyncio.run(scenario())
    ended = [line.split()[0] for line in out.splitlines() if " ended " in line]
    assert (sorted(ended), code) == (["p:1:0", "p:1:0:1:0"], 0)
    assert "the run has no owner" in err
