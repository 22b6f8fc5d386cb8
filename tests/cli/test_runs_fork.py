"""`runs fork`: a new run out of the middle, or the end, of another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.trust.signature import signed
from orchestrator.kernel.journal import Record
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.runs.result import fork_of, fork_tags
from tests.cli.parked import LOOKER, bodies, parked, stored
from tests.cli.recorded import JOURNAL, Tape, record

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)
NEW = ("--run-id", "run-2")


def forked(cli: Cli, *options: str) -> dict[str, Any]:
    done = cli("runs", "fork", "run-1", *options, *NEW, "--json", *AT)
    assert done.code == 0, done.err
    result: dict[str, Any] = json.loads(done.out)
    return result


@pytest.mark.parametrize(("turn", "kept"), [(0, 1), (1, 3), (2, 5), (3, 7)])
def test_it_starts_from_the_conversation_after_a_turn(cli: Cli, folder: Path, turn: int, kept: int) -> None:
    parked(folder, **LOOKER)
    before = stored()
    source = before[1]
    found = forked(cli, "--turn", str(turn), "--model", "python:agents:counter")
    assert found["output"] == f"{kept} messages"
    (created,) = bodies("created", "run-2")
    assert created["launch"]["forked_from"] == {"run_id": "run-1", "turn": turn}
    assert created["launch"]["model"] == "python:agents:counter"
    assert created["tags"] == {"forked_from": "run-1", "forked_turn": str(turn)}, (
        "a listing finds the forks of a run"
    )
    assert [one["role"] for one in created["context"]["messages"]] == (
        ["user"] + ["assistant", "tool"] * turn
    )
    assert stored() == before
    assert stored()[1] == source


def test_a_fork_has_the_tags_of_its_run_and_its_own_only_if_there_is_room() -> None:
    assert fork_tags({"team": "ops", "forked_from": "older", "forked_turn": "4"}, "run-1", 2) == {
        "team": "ops", "forked_from": "run-1", "forked_turn": "2",
    }  # fmt: skip
    full = {f"tag-{number}": "x" for number in range(31)}
    assert fork_tags(full, "run-1", 2) == full
    assert fork_tags({}, "x" * 257, 2) == {}


def created(**body: Any) -> list[Record]:
    return [Record(0, 1, "created", body, "")]


def test_the_source_of_a_fork_is_read_from_its_tags_or_its_launch_and_never_from_the_tags_of_a_parent() -> (
    None
):
    tags = {"forked_from": "run-1", "forked_turn": "2"}
    assert fork_of(created(tags=tags)) == ("run-1", 2)
    assert fork_of(created(launch={"forked_from": {"run_id": "run-1", "turn": 3}})) == ("run-1", 3)
    assert fork_of(created(tags=tags, parent_run_id="run-2")) is None
    assert fork_of(created(tags={"forked_from": "run-1", "forked_turn": "many"})) == ("run-1", 0)
    assert fork_of(created(tags={"team": "ops"})) is fork_of([]) is None


def test_the_same_model_goes_on_from_there_as_it_was_started(cli: Cli, folder: Path) -> None:
    parked(folder, limits=Limits(max_tool_errors=7), instructions="Be quick.", **LOOKER)
    found = forked(cli, "--turn", "1")
    assert found["output"] == "looked 3 times"
    assert [one["content"] for one in found["messages"] if one["role"] == "tool"] == [
        "seen 1",
        "seen 2",
        "seen 3",
    ]
    (created,) = bodies("created", "run-2")
    assert created["context"]["limits"]["max_tool_errors"] == 7
    assert [one["role"] for one in created["context"]["messages"]][:2] == ["system", "user"]


def test_from_its_end_a_prompt_says_what_comes_next(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    parked(folder, **LOOKER)
    done = cli("runs", "fork", "run-1", *NEW, *AT)
    assert "after turn 4 run run-1 has its answer: say with --prompt what comes next" in one_sentence(done)
    assert done.code == 2
    found = forked(cli, "--prompt", "And now?", "--model", "python:agents:counter")
    assert found["output"] == "9 messages"
    assert found["messages"][-2]["content"] == "And now?"


def test_calls_that_wait_are_answered_and_the_run_that_waits_stays(cli: Cli, folder: Path) -> None:
    parked(folder)
    before = stored()
    done = cli("runs", "fork", "run-1", *NEW, "--json", *AT)
    assert done.err.startswith("orchestrator: 1 other run is open and has no owner: ")
    found = json.loads(done.out)
    assert "before anybody approved this call" in found["messages"][2]["content"]
    assert stored() == before
    assert (folder / "paid.txt").exists() is False


def test_it_is_shown_like_a_run_and_has_an_id_of_its_own(cli: Cli, folder: Path) -> None:
    parked(folder, **LOOKER)
    done = cli("runs", "fork", "run-1", "--turn", "2", *AT)
    assert (done.code, "init -> await_llm" in done.out) == (0, True)
    name = done.out.split()[1].rstrip(",")
    assert (name != "run-1", len(name)) == (True, 32)
    assert stored(name)[0].status == "ended"


REFUSED = [
    (("run-1", "--turn", "5"), "run run-1 has 4 turns: give a turn from 0 to 4"),
    (("run-1", "--turn", "-1"), "run run-1 has 4 turns"),
    (("run-1", "--turn", "1", "--run-id", "run-1"), "run 'run-1' exists: `orchestrator runs resume run-1 "),
    (("run-1", "--turn", "1", "--run-id", " x"), "run_id is ' x', which no route or command line can name"),
    (("run-1", "--turn", "1", "--model", "python:nowhere:x"), "there is no module 'nowhere'"),
    (("run-1", "--turn", "1", "--limit", "max_turns=1"), "unknown setting limits.max_turns"),
    (("nope",), "no run 'nope' in "),
    (("foreign", "--turn", "0"), "run foreign belongs to graph 'pipeline'"),
    (("hosted", "--turn", "0"), "run hosted was not started by the command line"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_cannot_be_forked_is_one_sentence(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, options: tuple[str, ...], said: str
) -> None:
    parked(folder, **LOOKER)
    record(Tape("foreign", graph="pipeline").begin().completes(), Tape("hosted").begin().completes())
    before = stored()
    done = cli("runs", "fork", *options, *AT)
    assert said in one_sentence(done)
    assert (done.code, stored()) == (2, before)


def test_a_run_of_another_version_can_be_forked(cli: Cli, folder: Path) -> None:
    parked(folder, **LOOKER)
    record(Tape("old", launch=signed({"model": "python:agents:counter"})).begin())
    done = cli("runs", "fork", "old", *NEW, "--json", *AT)
    assert json.loads(done.out)["output"] == "1 messages"
    assert stored("run-2")[0].fingerprint == LLM_LOOP.fingerprint
