"""The commands of `runs` and the class `Runs` give the same data for the same journal, in SQLite and in memory."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import MemoryJournal, Runs
from orchestrator.events import (
    ModelRequestFinished,
    QuestionAsked,
    RunCreated,
    RunEvent,
    RunFinished,
    RunSuspended,
    StateChanged,
    ToolFinished,
    ToolStarted,
)
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft
from tests.cli.recorded import JOURNAL, Call, Tape, inbox, play, record

Cli = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]
AT = ("--journal", JOURNAL)
NOW = time.time()


def spent(tokens: int, cost: int) -> Draft:
    usage = {"input_tokens": tokens, "output_tokens": 0, "cost_micros": cost}
    return Draft("context", {"spent": {"usage": usage}})


def tapes() -> list[Tape]:
    ops: dict[str, Any] = {"agent": "support", "tags": {"team": "ops"}}
    asks = Tape("asks", began=NOW - 3_000, **ops).begin().asks(Call("pay", '{"sum": 1}'))
    asks.appends[-1] = [Draft("parked", {"reason": "approval", "at": asks.at, "t": asks.t, "tools": ["pay"]})]
    return [
        Tape("oldest", began=NOW - 900_000, **ops).begin().add(spent(50, 7)).completes(),
        Tape("dear", began=NOW - 600_000, agent="sales").begin().add(spent(900, 90)).completes(),
        asks,
        Tape("failed", began=NOW - 50, graph="pipeline").begin().ends("failed", "llm_error"),
        Tape("engine-1", began=NOW - 10, graph="engine"),
    ]


def make(journal: Any) -> Any:
    async def made() -> Any:
        for tape in tapes():
            await journal.release(await play(tape, journal))
        return journal

    return made()


def stores() -> dict[str, Callable[[], Awaitable[Any]]]:
    async def sqlite() -> Any:
        return SqliteJournal(JOURNAL)

    return {"sqlite": sqlite, "memory": lambda: make(MemoryJournal())}


LISTINGS: list[tuple[tuple[str, ...], dict[str, Any], list[str]]] = [
    ((), {}, ["failed", "asks", "dear", "oldest"]),
    (("--agent", "support"), {"agent": "support"}, ["asks", "oldest"]),
    (("--machine", "pipeline"), {"machine": "pipeline"}, ["failed"]),
    (("--graph", "engine"), {"machine": "engine"}, ["engine-1"]),
    (("--status", "parked"), {"status": "parked"}, ["asks"]),
    (("--state", "finalize"), {"state": "finalize"}, ["dear", "oldest"]),
    (
        ("--outcome", "failed", "--reason", "llm_error"),
        {"outcome": "failed", "reason": "llm_error"},
        ["failed"],
    ),
    (("--tag", "team=ops"), {"tag": {"team": "ops"}}, ["asks", "oldest"]),
    (("--waiting",), {"waiting": True}, ["asks"]),
    (("--waiting-for", "pay"), {"waiting": "pay"}, ["asks"]),
    (("--waiting-for", "mail"), {"waiting": "mail"}, []),
    (("--older-than", "1h"), {"older_than": NOW - 3_600}, []),
    (("--started-within", "1d"), {"started_since": NOW - 86_400}, ["failed", "asks"]),
    (("--search", "OLD"), {"search": "OLD"}, ["oldest"]),
    (("--search", "ops support"), {"search": "ops support"}, ["asks", "oldest"]),
    (("--search", "503"), {"search": "503"}, []),
    (("--sort", "age"), {"order_by": "age"}, ["oldest", "dear", "asks", "failed"]),
    (("--sort", "time-in-state"), {"order_by": "time_in_state"}, ["oldest", "dear", "asks", "failed"]),
    (("--sort", "tokens", "--limit", "2"), {"order_by": "tokens", "limit": 2}, ["dear", "oldest"]),
    (("--sort", "cost", "--limit", "1"), {"order_by": "cost", "limit": 1}, ["dear"]),
    (
        ("--sort", "cost", "--limit", "1", "--after", "dear"),
        {"order_by": "cost", "limit": 1, "after": "dear"},
        ["oldest"],
    ),
]


@pytest.mark.parametrize("store", sorted(stores()))
@pytest.mark.parametrize(("options", "conditions", "expected"), LISTINGS, ids=" ".join)
def test_a_listing_has_the_same_runs_and_figures(
    cli: Cli,
    folder: Path,
    lines: Callable[[str], Any],
    store: str,
    options: tuple[str, ...],
    conditions: dict[str, Any],
    expected: list[str],
) -> None:
    asyncio.run(write())
    printed = lines(cli("runs", "list", *AT, "--json", *options).out)

    async def read() -> list[dict[str, Any]]:
        journal = await stores()[store]()
        try:
            heads = await Runs(journal).list(**conditions)
        finally:
            await journal.close()
        return [
            {
                name: getattr(head, name)
                for name in (
                    *("run_id", "graph", "status", "reason", "agent", "tags", "waiting", "tokens"),
                    *("cost_micros", "state_since", "created_at"),
                )
            }
            for head in heads
        ]

    found = asyncio.run(read())
    assert [one["run_id"] for one in found] == expected
    assert [{name: one[name] for name in head} for one, head in zip(printed, found, strict=True)] == found


async def write() -> None:
    async with SqliteJournal(JOURNAL) as journal:
        await make(journal)


@pytest.mark.parametrize("store", sorted(stores()))
@pytest.mark.parametrize("run_id", ["oldest", "dear", "asks", "failed"])
def test_one_run_has_the_same_details_questions_and_result(
    cli: Cli, folder: Path, store: str, run_id: str
) -> None:
    asyncio.run(write())
    printed = json.loads(cli("runs", "show", run_id, *AT, "--json").out)

    async def read() -> tuple[Any, ...]:
        journal = await stores()[store]()
        try:
            runs = Runs(journal)
            found = await runs.get(run_id)
            result = await runs.result(run_id) if found.ended else None
            return found, result, await runs.pending(run_id)
        finally:
            await journal.close()

    found, result, pending = asyncio.run(read())
    assert (printed["state"], printed["turn"]) == (found.story.state, found.story.turn)
    assert [(one["call"], one["digest"]) for one in printed["waiting_for"]] == [
        (one.key, one.digest) for one in pending
    ]
    assert {name: printed["usage"][name] for name in found.usage.as_json()} == found.usage.as_json()
    ended = (None, None) if result is None else (result.outcome.value, result.reason)
    assert (printed["outcome"], printed["reason"] if printed["status"] == "ended" else None) == ended


@pytest.mark.parametrize("store", sorted(stores()))
@pytest.mark.parametrize("run_id", ["oldest", "dear", "asks"])
def test_the_events_of_a_run_are_those_of_the_records_that_the_command_prints(
    cli: Cli, folder: Path, lines: Callable[[str], Any], store: str, run_id: str
) -> None:
    asyncio.run(write())
    printed = lines(cli("runs", "events", run_id, *AT, "--json", "--content").out)

    async def read() -> list[RunEvent]:
        journal = await stores()[store]()
        try:
            return [event async for event in Runs(journal).events(run_id)]
        finally:
            await journal.close()

    events = asyncio.run(read())
    kinds = {one["seq"]: one["kind"] for one in printed}
    classes = {
        "created": RunCreated,
        "transition": StateChanged,
        "answer": ModelRequestFinished,
        "intent": ToolStarted,
        "done": ToolFinished,
        "asked": QuestionAsked,
        "parked": RunSuspended,
        "ended": RunFinished,
    }
    found = [(event.seq, type(event)) for event in events if event.part == 0]
    assert found == [(seq, classes[kind]) for seq, kind in kinds.items() if kind in classes]


@pytest.mark.parametrize("option", [("--tag", "team"), ("--older-than", "soon"), ("--status", "closed")])
def test_an_invalid_condition_is_one_sentence(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, option: tuple[str, ...]
) -> None:
    asyncio.run(write())
    done = cli("runs", "list", *AT, *option)
    assert repr(option[1]) in one_sentence(done)
    assert done.code == 2


def test_the_number_that_decides_the_order_has_a_column(cli: Cli, folder: Path) -> None:
    asyncio.run(write())
    done = cli("runs", "list", *AT, "--sort", "tokens")
    assert re.search(r"dear .* 900$", done.out, re.MULTILINE)
    assert re.search(r"failed .* -$", done.out, re.MULTILINE)
    assert "in state" in cli("runs", "list", *AT, "--sort", "time-in-state").out


def test_a_watched_list_shows_new_runs_until_it_is_interrupted(start: Start, folder: Path) -> None:
    asyncio.run(write())
    watching = start("runs", "list", *AT, "--watch")
    assert watching.stdout is not None
    while "oldest" not in watching.stdout.readline():
        assert watching.poll() is None

    async def one_more() -> None:
        async with SqliteJournal(JOURNAL) as journal:
            await journal.release(await play(Tape("latest").begin(), journal))

    asyncio.run(one_more())
    while "latest" not in watching.stdout.readline():
        assert watching.poll() is None
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (0, "")


def test_several_runs_are_listed_first_and_cancelled_with_yes(cli: Cli, folder: Path) -> None:
    asyncio.run(write())
    record(Tape("left", agent="support").begin())
    done = cli("runs", "cancel", *AT, "--agent", "support", "--by", "ann")
    assert done.out == (
        "  asks  parked, agent support, process_tools\n"
        "  left  open, agent support, await_llm\n"
        "2 runs would receive a cancel; --yes posts it\n"
    )
    assert (done.code, inbox("asks"), inbox("left")) == (0, [], [])
    done = cli("runs", "cancel", *AT, "--agent", "support", "--by", "ann", "--why", "wrong price", "--yes")
    assert done.out == (
        "posted: cancel for run asks\nposted: cancel for run left\n"
        "not cancelled, because their owner is gone, until they are resumed: left\n"
    )
    assert done.code == 1
    for run_id in ("asks", "left"):
        assert [(one.kind, one.by, one.body) for one in inbox(run_id)] == [
            ("cancel", "ann", {"why": "wrong price"})
        ]
    done = cli("runs", "pause", *AT, "--state", "none", "--yes")
    assert (done.out, done.code) == ("no open or parked run fits: nothing was posted\n", 0)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("cancel", "--yes"), "cancel needs the id of a run, or at least one condition: agent"),
        (("cancel", "asks", "--agent", "support"), "give the id of a run, or conditions on runs, not both"),
    ],
)
def test_a_cancel_of_no_run_or_of_both_is_refused(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, command: tuple[str, ...], said: str
) -> None:
    asyncio.run(write())
    done = cli("runs", *command, *AT)
    assert said in one_sentence(done)
    assert (done.code, inbox("asks")) == (2, [])
