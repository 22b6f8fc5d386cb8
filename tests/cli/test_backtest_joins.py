"""`orchestrator backtest --join` and guardrails: decisions about branches and about texts under another policy."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, SqliteJournal, tool
from orchestrator.branches import Branch, Fan, Join, ended
from orchestrator.testing import ScriptedLLM
from tests.cli.recorded import JOURNAL
from tests.runtime.branches.machine import SpreadContext, workflow

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)
RUNS = {"one": [1, 2, 3], "two": [1, -1, 2], "three": [1, -1, -2], "none": [-1, -2]}


@tool(effect="pure")
def double(number: int) -> int:
    """Double a number."""
    if number < 0:
        raise ValueError("below zero")
    return 2 * number


async def spread(join: Join) -> None:
    async with SqliteJournal(JOURNAL) as journal:
        machine = workflow(
            Fan(max=9, concurrency=1, join=join),
            lambda item: Branch(double, {"number": item}),
            journal=journal,
        )
        for run_id, items in RUNS.items():
            await machine.run(SpreadContext(items), run_id=run_id)


@pytest.fixture
def journal(folder: Path) -> Path:
    asyncio.run(spread(ended(2)))
    return folder / JOURNAL


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.usefixtures("journal")
def test_a_join_is_tested_on_the_recorded_decisions_of_its_state(cli: Cli) -> None:
    done = cli("backtest", *AT, "--join", "spread=all")
    assert done.code == 0
    assert lines_of(done.out)[:4] == [
        ["4", "decisions", "evaluated"],
        ["state", "change", "decisions"],
        ["spread", "none", "3"],
        ["spread", "too", "few,", "and", "were", "enough", "1"],
    ]
    (row,) = [line for line in done.out.splitlines() if line.startswith("  two ")]
    recorded, tested = (
        "2 of 2 needed (2 of 3 branches completed)",
        "2 of 3 needed (2 of 3 branches completed)",
    )
    assert row.split() == f"two completed spread 0 joined: {recorded} joined: {tested}".split()


@pytest.mark.usefixtures("journal")
def test_the_report_about_a_join_is_one_json_object_and_one_csv_row_for_each_decision(cli: Cli) -> None:
    report = json.loads(cli("backtest", *AT, "--join", "spread=first:1", "--json").out)
    assert report == {
        "joins": {"spread": "first 1"},
        "decisions": 4,
        "unchanged": 3,
        "enough": 1,
        "too_few": 0,
        "states": [
            {"state": "spread", "change": "enough", "decisions": 1},
            {"state": "spread", "change": "none", "decisions": 3},
        ],
        "left_out": {},
        "damage": "",
    }
    rows = list(csv.DictReader(io.StringIO(cli("backtest", *AT, "--join", "spread=first:1", "--csv").out)))
    assert {row["run_id"]: (row["change"], row["recorded"], row["tested"]) for row in rows} == {
        "one": ("none", "True", "True"),
        "two": ("none", "True", "True"),
        "three": ("enough", "False", "True"),
        "none": ("none", "False", "False"),
    }


@pytest.mark.usefixtures("journal")
def test_conditions_select_the_runs_of_a_join(cli: Cli) -> None:
    for arguments, decisions in [
        (("--machine", "spread"), 4),
        (("--machine", "llm_loop"), 0),
        (("--since", "1h"), 4),
        (("--since", "1h", "--outcome", "failed"), 0),
    ]:
        done = cli("backtest", *AT, "--join", "spread=any", "--json", *arguments)
        assert json.loads(done.out)["decisions"] == decisions, arguments
    assert cli("backtest", *AT, "--join", "elsewhere=any").out == "no decision was evaluated\n"


def test_decisions_that_cannot_be_evaluated_are_counted_with_the_reason(cli: Cli, folder: Path) -> None:
    asyncio.run(spread(ended(1)))
    done = cli("backtest", *AT, "--join", "spread=quorum:2")
    assert done.out.splitlines() == [
        "no decision was evaluated",
        "left out: 4 decisions: a quorum needs votes, and its join was ended 1",
    ]
    assert (folder / JOURNAL).exists()


@pytest.mark.usefixtures("journal")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--join", "spread"), "join 'spread' is not of the form STATE=JOIN; a join is all, any, first:N"),
        (("--join", "spread=first"), "is not of the form STATE=JOIN"),
        (("--join", "spread=first:0"), "with N from 1"),
        (("--join", "spread=all:2"), "is not of the form STATE=JOIN"),
        (("--join", "spread=all", "--join", "spread=any"), "state 'spread' has two joins"),
        (("--join", "spread=all", "--set", "max_iterations=3"), "without --set: run the command for each"),
        (("--join", "spread=all", "--output-guard", "none"), "without --output-guard"),
        (("--join", "spread=all", "models.py"), "without FILE"),
        (("--output-guard", "none", "--output-guard", "models:number"), "'none' means no guardrail"),
        (("--output-guard", "models:missing"), "models has no 'missing'"),
    ],
)
def test_what_is_no_join_and_what_does_not_go_with_one_is_refused(
    cli: Cli, arguments: tuple[str, ...], sentence: str
) -> None:
    done = cli("backtest", *AT, *arguments)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1


GUARDS = """
from orchestrator import Verdict
from orchestrator_guards import Guardrail


def short(chars: int) -> Verdict:
    return Verdict(chars <= 10, "short", chars, 10)


def retried(chars: int) -> Verdict:
    return Verdict(chars <= 10, "retried", chars, 10)


again = Guardrail(retried, on_refusal="retry")
"""


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (("--output-guard", "own_guards:short"), "stop"),
        (("--output-guard", "own_guards:again"), "open_end"),
        (("--output-guard", "none"), "none"),
        (("--input-guard", "own_guards:short"), "none"),
        (("--input-guard", "none"), "none"),
    ],
)
def test_guardrails_of_a_module_are_tested_in_place_of_those_of_the_runs(
    cli: Cli, folder: Path, arguments: tuple[str, ...], change: str
) -> None:
    (folder / "own_guards.py").write_text(GUARDS)
    recorded: dict[str, Any] = {}
    exec(GUARDS.replace("10", "1000"), recorded)  # noqa: S102  the guards that the run was recorded with

    async def play() -> None:
        async with SqliteJournal(JOURNAL) as journal:
            agent = Agent(
                ScriptedLLM(["a long answer"]),
                input_guards=[recorded["short"]],
                output_guards=[recorded["short"]],
                journal=journal,
                observers=(),
            )
            await agent.run("go", run_id="p")

    asyncio.run(play())
    done = cli("backtest", *AT, *arguments, "--csv")
    (row,) = csv.DictReader(io.StringIO(done.out))
    assert (row["run_id"], row["change"], row["left_out"]) == ("p", change, "")
