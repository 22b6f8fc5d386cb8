"""`runs migrate`: which versions runs are in, and how they come to this one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from tests.cli.parked import agents, bodies, said, stored
from tests.cli.recorded import JOURNAL, Call, Tape, play, record

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)
OLD, OLDER = "f" * 64, "0a" * 32


@pytest.fixture
def runs(folder: Path) -> None:
    agents(folder)
    record(
        Tape("old-1").begin(),
        Tape("old-2").begin().asks(Call("pay")),
        Tape("older", fingerprint=OLDER).begin(),
        Tape("now", fingerprint=LLM_LOOP.fingerprint).begin(),
        Tape("foreign", graph="pipeline").begin(),
        Tape("over").begin().completes(),
    )


USING = ("--using", "agents:unchanged")


def epochs() -> dict[str, int]:
    return {name: stored(name)[0].epoch for name in ("old-1", "old-2", "older", "now", "foreign", "over")}


@pytest.mark.usefixtures("runs")
def test_a_dry_run_lists_the_versions_of_runs_in_flight(cli: Cli) -> None:
    before = epochs()
    done = cli("runs", "migrate", "--dry-run", *AT)
    assert (done.code, done.err) == (0, "")
    rows = [line.split(maxsplit=4) for line in done.out.splitlines()[1:5]]
    assert rows == [
        ["llm_loop", "ffffffffffff", "2", "0", "another: needs a migration"],
        ["llm_loop", "0a0a0a0a0a0a", "1", "0", "another: needs a migration"],
        ["llm_loop", LLM_LOOP.fingerprint[:12], "1", "0", "this one"],
        ["pipeline", "ffffffffffff", "1", "0", "another: migrated in code"],
    ]
    assert "orchestrator runs migrate --using MODULE:FUNCTION --journal journal.db" in done.out
    found = said(cli("runs", "migrate", "--dry-run", "--json", *AT).out)
    assert [(one["fingerprint"], one["current"]) for one in found][2] == (LLM_LOOP.fingerprint, True)
    assert epochs() == before


@pytest.mark.usefixtures("runs")
def test_all_runs_of_other_versions_are_migrated_and_not_driven(cli: Cli) -> None:
    done = cli("runs", "migrate", *USING, *AT)
    assert (done.code, done.err) == (0, "")
    assert [line.split()[:3] for line in done.out.splitlines()] == [
        ["old-1", "ffffffffffff", "migrated"],
        ["old-2", "ffffffffffff", "migrated"],
        ["older", "0a0a0a0a0a0a", "migrated"],
    ]
    assert epochs() == {"old-1": 2, "old-2": 2, "older": 2, "now": 1, "foreign": 1, "over": 1}
    (body,) = bodies("migrated", "old-1")
    assert (body["from"], body["to"]) == (OLD, LLM_LOOP.fingerprint)
    head = stored("old-2")[0]
    assert (head.status, head.reason, head.owner) == ("parked", "approval", None)
    assert "may pay run?" in cli("runs", "resume", *AT).out
    again = cli("runs", "migrate", *USING, *AT)
    assert (again.code, again.out) == (0, "no run needs a migration\n")
    assert "another: needs" not in cli("runs", "migrate", "--dry-run", *AT).out


@pytest.mark.usefixtures("runs")
def test_only_those_of_one_version_or_those_named(cli: Cli) -> None:
    cli("runs", "migrate", *USING, "--from", "0A0A", *AT)
    assert epochs()["older"] == 2
    done = cli("runs", "migrate", "old-1", *USING, "--json", *AT)
    assert [(one["run_id"], one["migrated"], one["error"]) for one in said(done.out)] == [
        ("old-1", True, None)
    ]
    assert (epochs()["old-1"], epochs()["old-2"]) == (2, 1)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("using", "why"),
    [
        ("breaks", "the migration raised KeyError: 'no such state'"),
        ("nothing", "agents:nothing returned a NoneType; it must return the StoredRun"),
    ],
)
def test_a_migration_that_fails_leaves_the_run_as_it_was(cli: Cli, using: str, why: str) -> None:
    records = stored("old-1")[1]
    done = cli("runs", "migrate", "old-1", "--using", f"agents:{using}", *AT)
    assert done.out == f"old-1  ffffffffffff  not migrated: {why}\n"
    assert done.err == "orchestrator: 1 run of 1 could not be migrated and is as before\n"
    assert done.code == 1
    head, now = stored("old-1")
    assert (now, head.owner) == (records, None)


@pytest.mark.usefixtures("runs")
def test_a_run_that_somebody_holds_is_said_and_the_others_are_migrated(cli: Cli) -> None:
    async def held() -> Any:
        async with SqliteJournal(JOURNAL) as journal:
            await play(Tape("held").begin(), journal)
            return await asyncio.to_thread(cli, "runs", "migrate", *USING, *AT)

    done = asyncio.run(held())
    assert "held  ffffffffffff  not migrated: run 'held' is held by worker-1" in done.out
    assert "1 run of 4 could not be migrated" in done.err
    assert (done.code, epochs()["older"]) == (1, 2)


REFUSED = [
    ((), "say either --dry-run, which lists, or --using MODULE:FUNCTION"),
    (("--dry-run", *USING), "say either --dry-run"),
    (("--using", "agents"), "migration 'agents' is not of the form module:attribute"),
    (("--using", "agents:TELLER"), "agents has no 'TELLER'"),
    (("--using", "agents:__name__"), "is a str; it must be a function"),
    ((*USING, "--from", "ff"), "--from 'ff' is too short: give at least 4 characters"),
    (("now", *USING), "run now is in this version already: nothing was migrated"),
    (("over", *USING), "run over is over: nothing was migrated"),
    (("foreign", *USING), "run foreign belongs to graph 'pipeline', not of 'llm_loop'"),
    (("old-1", *USING, "--from", "0a0a"), "run old-1 was made with ffffffffffff, not with 0a0a"),
    (("nobody", *USING), "no run 'nobody' in "),
]


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(("options", "why"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_cannot_be_migrated_is_one_sentence(
    cli: Cli, one_sentence: Callable[[Any], str], options: tuple[str, ...], why: str
) -> None:
    before = epochs()
    done = cli("runs", "migrate", *options, *AT)
    assert why in one_sentence(done)
    assert (done.code, epochs()) == (2, before)


def test_where_nothing_is_in_flight_that_is_said(cli: Cli, folder: Path) -> None:
    record(Tape("over").begin().completes())
    assert cli("runs", "migrate", "--dry-run", *AT).out == "no run is in flight\n"
