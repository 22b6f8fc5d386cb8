from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

ASK = ("run", "How many moons?", "--model")
LOOK = ("--tool", "models:look")


def test_states_pass_line_by_line_then_come_answer_and_outcome(cli: Cli) -> None:
    done = cli(*ASK, "python:models:answers", *LOOK)
    path = [line.split()[:3] for line in done.out.splitlines() if " -> " in line]
    assert [source for source, _, _ in path] == [
        "init",
        "await_llm",
        "evaluate_response",
        "process_tools",
        "update_budgets",
        "await_llm",
        "evaluate_response",
        "handle_completion",
    ]
    assert "tool look: ok" in done.out
    assert done.out.endswith(
        "\nTwo moons.\n\noutcome: completed; 2 requests, 1 tool call, 2 tokens in, 2 out\n"
    )
    assert (done.code, done.err) == (0, "")


def test_json_is_one_object_with_everything(cli: Cli) -> None:
    (line,) = cli(*ASK, "python:models:answers", *LOOK, "--json").out.splitlines()
    result = json.loads(line)
    assert list(result) == [
        "run_id",
        "outcome",
        "reason",
        "output",
        "usage",
        "verdict",
        "error",
        "messages",
        "transitions",
    ]
    assert (result["outcome"], result["output"]) == ("completed", "Two moons.")
    assert [message["role"] for message in result["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert result["messages"][2]["content"] == "seen: moon"
    assert [one["seq"] for one in result["transitions"]] == list(range(1, 9))
    assert result["transitions"][-1]["to_state"] == "finalize"
    assert result["usage"]["input_tokens"] == 2
    assert (result["verdict"], result["error"]) == (None, None)


def test_the_verdict_that_stopped_a_run_is_in_json_and_on_stderr(cli: Cli) -> None:
    done = cli(*ASK, "python:models:repeats", *LOOK, "--json", "--limit", "max_iterations=2")
    verdict = json.loads(done.out)["verdict"]
    assert verdict == {"ok": False, "guard": "iterations", "observed": 2, "limit": 2, "detail": ""}
    assert done.err == (
        "orchestrator: the run ended as budget_exceeded (max_iterations): iterations: 2 of 2 used\n"
    )


def test_the_error_that_failed_a_run_is_one_sentence(cli: Cli) -> None:
    done = cli(*ASK, "python:models:breaks", "--json")
    assert json.loads(done.out)["error"] == {"type": "ValueError", "message": "the model\nis down"}
    assert done.err == "orchestrator: the run ended as failed (llm_error): the model is down\n"


FORMS = [
    ("python:models:model", "How many moons??"),
    ("python:models:Model", "How many moons??"),
    ("python:models:asked", "1 messages, the first from user"),
]


@pytest.mark.parametrize(("spec", "answer"), FORMS)
def test_a_model_is_an_object_a_class_or_a_function(cli: Cli, spec: str, answer: str) -> None:
    assert json.loads(cli(*ASK, spec, "--json").out)["output"] == answer


def test_instructions_come_first(cli: Cli) -> None:
    done = cli(*ASK, "python:models:asked", "--instructions", "Be brief.", "--json")
    assert json.loads(done.out)["output"] == "2 messages, the first from system"


def test_a_prompt_can_come_from_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("From a pipe"))
    assert (
        json.loads(cli("run", "-", "--model", "python:models:model", "--json").out)["output"]
        == "From a pipe?"
    )


def test_the_answer_can_be_held_to_a_schema(cli: Cli, folder: Path) -> None:
    schema = {"type": "object", "properties": {"moons": {"type": "integer"}}, "required": ["moons"]}
    (folder / "moons.json").write_text(json.dumps(schema))
    done = cli(*ASK, "python:models:json_answer", "--output-schema", "moons.json", "--json")
    assert json.loads(done.out)["output"] == {"moons": 2}
    refused = ("--limit", "completion_retries=0")
    done = cli(*ASK, "python:models:json_answer", "--output-schema", "moons.json", "--json", *refused)
    assert (json.loads(done.out)["reason"], done.code) == ("completion_invalid", 1)


def test_recorded_answers_come_with_recorded_tools(cli: Cli, folder: Path, record: Any) -> None:
    said = record.conversation(
        record.user("Then?"),
        record.says(None, ("c1", "look", "{}")),
        record.result("c1", "a moon"),
        record.says("One moon."),
    )
    (folder / "one.jsonl").write_text(json.dumps(said))
    for spec in ("replay:one.jsonl", "replay:one.jsonl#one"):
        messages = json.loads(cli("run", "Now?", "--model", spec, "--json").out)["messages"]
        assert [message["content"] for message in messages] == ["Now?", None, "a moon", "One moon."]
    own = json.loads(cli("run", "Now?", "--model", "replay:one.jsonl", *LOOK, "--json").out)["messages"]
    assert "query" in own[2]["content"]  # our tool misses the argument that the recorded one did not need


def test_a_cap_on_a_tool_is_written_as_json(cli: Cli) -> None:
    done = cli(*ASK, "python:models:repeats", *LOOK, "--json", "--limit", 'tool_caps={"look": 1}')
    assert json.loads(done.out)["verdict"]["guard"] == "tool_cap"


def test_settings_of_the_environment_hold_unless_the_command_line_says_otherwise(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_MODEL", "python:models:repeats")
    monkeypatch.setenv("ORCHESTRATOR_LIMITS__MAX_ITERATIONS", "2")
    assert json.loads(cli("run", "hi", *LOOK, "--json").out)["verdict"]["observed"] == 2
    done = cli("run", "hi", *LOOK, "--json", "--limit", "max_iterations=1")
    assert json.loads(done.out)["verdict"]["observed"] == 1
    assert json.loads(cli("run", "hi", *LOOK, "--json", "--model", "python:models:answers").out)["output"]


def test_the_log_can_be_kept_and_reported(cli: Cli, folder: Path) -> None:
    cli(*ASK, "python:models:answers", *LOOK, "--log", "run.log")
    cli(*ASK, "python:models:answers", *LOOK, "--log", "run.log", "--json")
    lines = [json.loads(line) for line in (folder / "run.log").read_text().splitlines()]
    assert len({line["run_id"] for line in lines}) == 2
    assert "2 runs completed" in cli("report", "run.log").out


def test_text_that_would_drive_the_terminal_or_no_encoding_holds_is_harmless(cli: Cli) -> None:
    assert "half a character: ?, and ?[31mred\n" in cli(*ASK, "python:models:surrogate").out
    done = cli(*ASK, "python:models:surrogate", "--json")
    assert json.loads(done.out)["output"] == "half a character: \ud83d, and \x1b[31mred"
