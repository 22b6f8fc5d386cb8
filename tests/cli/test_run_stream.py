"""`run --stream`: the answer as it comes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

Cli = Callable[..., Any]
ASKED = (
    "run",
    "how many moons?",
    "--run-id",
    "one",
    "--model",
    "python:models:answers",
    "--tool",
    "models:look",
)


def test_the_answer_comes_in_the_place_of_the_states_and_only_once(cli: Cli) -> None:
    done = cli(*ASKED, "--stream")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line for line in lines if "Two moons." in line] == ["Two moons."]
    assert any(line.startswith("    tool look: ok, 10 characters") for line in lines)
    assert not any("->" in line for line in lines)
    assert lines[-1].startswith("outcome: completed; 2 requests, 1 tool call")


def test_with_json_each_event_is_a_line_and_the_result_is_the_last(cli: Cli) -> None:
    done = cli(*ASKED, "--stream", "--json")
    facts = [json.loads(line) for line in done.out.splitlines()]
    result = facts.pop()
    assert (result["outcome"], result["output"]) == ("completed", "Two moons.")
    kinds = [fact["type"] for fact in facts]
    assert (kinds[0], kinds[-1]) == ("RunCreated", "RunFinished")
    assert "".join(fact["text"] for fact in facts if fact["type"] == "TextDelta") == "Two moons."
    walked = [
        (fact["source"], fact["event"], fact["dest"]) for fact in facts if fact["type"] == "StateChanged"
    ]
    assert walked == [(one["from_state"], one["event"], one["to_state"]) for one in result["transitions"]]
    called = next(fact for fact in facts if fact["type"] == "ToolStarted")
    assert (called["tool"], called["arguments"], bool(called["id"])) == ("look", '{"query": "moon"}', True)


def test_a_model_that_knows_no_streaming_has_its_answer_printed_at_the_end(cli: Cli) -> None:
    done = cli("run", "who?", "--model", "python:models:model", "--stream")
    assert done.code == 0
    assert done.out.splitlines()[-3:-1] == ["who??", ""]


def test_an_answer_that_was_cut_is_said_again_on_a_line_of_its_own(cli: Cli) -> None:
    done = cli("run", "go", "--model", "python:models:cut", "--stream")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[1] == "Two mo"
    assert lines[2].startswith("    attempt 1: connection,")
    assert lines[3] == "Two moons."


def test_who_stops_reading_has_the_run_cancelled(
    start: Callable[..., subprocess.Popen[str]], cli: Cli, folder: Path
) -> None:
    asked = ("run", "x", "--run-id", "one", "--model", "python:models:endless", "--tool", "models:look")
    process = start(*asked, "--stream", "--limit", "max_iterations=0", "--limit", "max_repeated_success=0")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr is not None
    process.stderr.close()
    (run,) = [json.loads(line) for line in cli("runs", "list", "--json").out.splitlines()]
    assert (run["run_id"], run["outcome"]) == ("one", "cancelled")
