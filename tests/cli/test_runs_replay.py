"""`runs replay`, and `runs export --as-test`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.providers.scripted import call
from orchestrator.testing import ScriptedLLM
from tests.cli.recorded import JOURNAL, Tape, record

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)


def look(query: str) -> str:
    return f"seen: {query}"


async def played() -> None:
    async with SqliteJournal(JOURNAL) as journal:
        answers: list[Any] = [call("look", query="moon"), "One moon."]
        await Agent(ScriptedLLM(answers), tools=[look], journal=journal, observers=()).run(
            "go", run_id="moon-run"
        )


@pytest.fixture
def journal(folder: Path) -> Path:
    asyncio.run(played())
    return folder / JOURNAL


@pytest.mark.usefixtures("journal")
def test_each_transition_is_printed_with_the_changes_of_the_context(
    cli: Cli, lines: Callable[[str], Any]
) -> None:
    done = cli("runs", "replay", "moon", *AT)
    assert (done.code, done.err) == (0, "")
    assert "  init -> await_llm  start_loop" in done.out
    assert "iteration: 0 -> 1" in done.out
    assert "spent.tool_calls: 0 -> 1" in done.out
    assert done.out.endswith("8 transitions, all as recorded\n")
    assert "seen: moon" not in done.out
    assert "seen: moon" in cli("runs", "replay", "moon", *AT, "--content").out
    *steps, end = lines(cli("runs", "replay", "moon", *AT, "--json").out)
    assert [one["event"] for one in steps][:2] == ["start_loop", "llm_response"]
    assert end == {"run_id": "moon-run", "transitions": 8, "outside": None, "difference": None}
    part = cli("runs", "replay", "moon", *AT, "--until", "5")
    assert part.out.endswith("3 transitions, all as recorded\n")


@pytest.mark.usefixtures("journal")
def test_a_difference_by_a_hook_is_an_error_with_both_contexts(cli: Cli, folder: Path) -> None:
    (folder / "strange.py").write_text("async def leave_process_tools(run):\n    raise ValueError('no')\n")
    done = cli("runs", "replay", "moon", *AT, "--hooks", "strange")
    assert done.code == 1
    sentence = (
        "transition 4 differs: recorded process_tools -> update_budgets (tools_executed), "
        "replayed process_tools -> terminate_error (failure, ValueError)"
    )
    assert done.err == f"orchestrator: run moon-run: {sentence}\n"
    assert sentence in done.out


@pytest.mark.usefixtures("journal")
def test_an_exported_test_passes_and_fails_when_a_transition_is_gone(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = cli("runs", "export", "moon", *AT, "--as-test", "incidents")
    assert done.code == 0
    test, data = folder / "incidents/test_run_moon_run.py", folder / "incidents/test_run_moon_run.json"
    assert f"{test.relative_to(folder)}: a test of run moon-run" in done.out
    monkeypatch.syspath_prepend(test.parent)
    exported = getattr(import_module(test.stem), f"{test.stem}_takes_its_recorded_transitions")
    exported()
    data.write_text(data.read_text().replace('"budget_ok"', '"restart_loop"'))
    with pytest.raises(AssertionError, match="run 'moon-run': transition 5 differs"):
        exported()
    again = cli("runs", "export", "moon", *AT, "--as-test", "incidents")
    assert (again.code, again.out) == (2, "")
    assert "exists and was not overwritten" in again.err


def test_what_cannot_be_replayed_is_refused(cli: Cli, folder: Path) -> None:
    record(Tape("a-pipeline", graph="pipeline").begin())
    for arguments, sentence in [
        (("replay", "a-pipeline"), "run 'a-pipeline' cannot be replayed: it is a run of graph 'pipeline'"),
        (("replay", "nothing"), "no run 'nothing'"),
        (("replay", "a-pipeline", "--hooks", "missing"), "hooks: there is no module 'missing'"),
        (("export", "a-pipeline", "--as-test", "x"), "cannot be replayed"),
        (("export", "a-pipeline", "--as-test", "x", "--content"), "leave out --content"),
    ]:
        done = cli("runs", *arguments, *AT)
        assert (done.code, done.out) == (2, ""), arguments
        assert sentence in done.err
        assert done.err.count("\n") == 1
    assert not (folder / "x").exists()
