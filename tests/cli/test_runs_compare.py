"""`runs compare`: two runs, or a run and its fork, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, Limits
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.providers.scripted import call
from orchestrator.testing import ScriptedLLM
from tests.cli.recorded import JOURNAL, Tape, record

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)


def look(query: str) -> str:
    return f"seen: {query}"


async def played() -> None:
    scripts: dict[str, list[Any]] = {
        "one-moon": [call("look", query="moon"), "One moon."],
        "same-moon": [call("look", query="moon"), "One moon."],
        "two-looks": [call("look", query="moon"), call("look", query="sun"), "A moon and a sun."],
    }
    async with SqliteJournal(JOURNAL) as journal:
        for run_id, answers in scripts.items():
            agent = Agent(ScriptedLLM(answers), tools=[look], journal=journal, observers=(), limits=Limits())
            await agent.run("go", run_id=run_id)


@pytest.fixture
def journal(folder: Path) -> Path:
    asyncio.run(played())
    return folder / JOURNAL


@pytest.mark.usefixtures("journal")
def test_the_first_transition_that_differs_is_named(cli: Cli, lines: Callable[[str], Any]) -> None:
    done = cli("runs", "compare", "one-moon", "two-looks", *AT)
    assert done.code == 0
    rows = {line.rsplit(maxsplit=2)[0].strip(): line.split()[-2:] for line in done.out.splitlines()[1:-2]}
    assert rows["turns"] == ["2", "3"]
    assert rows["calls of look"] == ["1", "2"]
    assert rows["input tokens"] == ["2", "3"]
    assert (
        "6 transitions equal; then one-moon has evaluate_response -> handle_completion (response_no_tool), "
        "two-looks has evaluate_response -> process_tools (response_with_tools)"
    ) in done.out
    assert done.out.endswith("the outputs differ: --content prints them\n")
    assert "A moon and a sun." in cli("runs", "compare", "one-moon", "two-looks", *AT, "--content").out
    [found] = lines(cli("runs", "compare", "one-moon", "two-looks", *AT, "--json").out)
    assert (found["equal"], found["divergence"]["number"], found["same_output"]) == (6, 7, False)
    assert "output" not in found["runs"][0]


@pytest.mark.usefixtures("journal")
def test_equal_runs_are_equal(cli: Cli) -> None:
    done = cli("runs", "compare", "one-moon", "same-moon", *AT)
    assert done.out.endswith("all 8 transitions are equal\nthe outputs are equal\n")


def test_a_fork_is_compared_from_the_turn_at_which_it_was_forked(cli: Cli, folder: Path) -> None:
    first = cli(
        "run", "go", "--model", "python:models:answers", "--tool", "models:look", *AT, "--run-id", "first-run"
    )
    assert first.code == 0, first.err
    fork = cli(
        *(
            "runs",
            "fork",
            "first-run",
            *AT,
            "--turn",
            "1",
            "--model",
            "python:models:model",
            "--run-id",
            "fork-run",
        )
    )
    assert fork.code == 0, fork.err
    done = cli("runs", "compare", "first-run", "fork-run", *AT)
    assert "after the fork at turn 1, all 3 transitions are equal" in done.out
    assert done.out.endswith("the outputs differ: --content prints them\n")
    assert cli("runs", "compare", "fork-run", "first-run", *AT).out == done.out, "in either order"
    assert folder.is_dir()


def test_runs_of_any_graph_can_be_compared_and_unknown_ones_are_refused(cli: Cli, folder: Path) -> None:
    record(Tape("a-pipeline", graph="pipeline").begin(), Tape("an-agent").begin().completes())
    assert cli("runs", "compare", "a-pipeline", "an-agent", *AT).code == 0
    done = cli("runs", "compare", "a-pipeline", "nothing", *AT)
    assert (done.code, done.out) == (2, "")
    assert "no run 'nothing'" in done.err
    assert folder.is_dir()
