"""What is read from the output of coding agents: recorded output, and output of a broken program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.llm.usage import Usage
from orchestrator.machines.ralph.contract import AgentFailed, Role
from orchestrator.ralph import AgentRequest, CodingAgent, CodingAnswer, CodingCall, CodingPreset
from orchestrator.runtime.ralph.coding_agent import PRESETS, answer_of
from orchestrator.runtime.service.program import ProgramExit


def lines(*events: dict[str, Any]) -> bytes:
    return b"a message for people\n" + b"".join(json.dumps(event).encode() + b"\n" for event in events)


CLAUDE = {"type": "result", "subtype": "error_max_turns", "is_error": True, "session_id": "s", "usage": {}}
READ = {
    "a limit of claude": (
        "claude",
        1,
        lines(CLAUDE),
        b"",
        CodingAnswer(session="s", error="error_max_turns"),
    ),
    "an overloaded server of claude": (
        "claude",
        1,
        lines({**CLAUDE, "api_error_status": 529, "result": "Overloaded"}),
        b"",
        CodingAnswer(text="Overloaded", session="s", error="Overloaded", retriable=True),
    ),
    "an error of gemini on its standard error": (
        "gemini",
        53,
        b"",
        b'trace {\n  status: 429\n}\n{\n  "session_id": "g",\n  "error": {"message": "quota", "code": 429}\n}\n',
        CodingAnswer(session="g", error="quota", retriable=True),
    ),
    "a retriable error of opencode": (
        "opencode",
        1,
        lines(
            {"type": "error", "sessionID": "o", "error": {"name": "APIError", "data": {"isRetryable": True}}}
        ),
        b"",
        CodingAnswer(session="o", error="APIError", retriable=True),
    ),
    "codex, stopped after its answer": (
        "codex",
        -9,
        lines(
            {"type": "thread.started", "thread_id": "t"},
            {"type": "item.completed", "item": {"type": "agent_message", "text": "Hi."}},
            {"type": "turn.completed", "usage": {"input_tokens": 9, "output_tokens": 2}},
        ),
        b"",
        CodingAnswer(text="Hi.", session="t", usage=Usage(9, 2), error="it was stopped by signal 9"),
    ),
}


@pytest.mark.parametrize("case", READ)
def test_what_a_program_printed_is_read(case: str) -> None:
    name, code, out, err, answer = READ[case]
    assert answer_of(PRESETS[name], ProgramExit(code, out, err)) == answer


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("out", [b"", b"garbage", b"{", b"{}", b"[1]", b'{"type": "text"}', b"\xff\xfe"])
def test_garbage_is_no_answer(name: str, out: bytes) -> None:
    assert answer_of(PRESETS[name], ProgramExit(0, out, out)) is None


TOLD = {
    "claude": "-p --output-format json --permission-mode acceptEdits --model m --resume s-1",
    "codex": "exec --json --skip-git-repo-check --sandbox workspace-write --model m resume s-1 -",
    "gemini": "--output-format json --approval-mode auto_edit --model m --resume s-1",
    "opencode": "run --format json --model m --session s-1",
}


def test_a_program_is_told_to_print_what_is_read_here() -> None:
    call = CodingCall(permission="edit", session="s-1", model="m")
    assert {name: " ".join(preset.arguments(call)) for name, preset in PRESETS.items()} == TOLD


@pytest.mark.parametrize("name", PRESETS)
def test_a_program_is_told_what_it_may_do_and_which_session_it_continues(name: str) -> None:
    preset = PRESETS[name]
    calls = [CodingCall(permission=one, session="s-1") for one in ("read", "edit", "all")]
    told = [(tuple(preset.arguments(call)), str(preset.variables(call))) for call in calls]
    assert len(set(told)) == 3
    assert all("s-1" in arguments for arguments, _ in told)


HOSTILE_TITLES = [
    "$(touch pwned) `touch pwned` ; touch pwned",
    "--dangerously-skip-permissions --model evil",
    "\x1b]0;title\x07\x1b[2J",
    "- [x] done\n## Answer\n```json\n{}\n```",
    "\u202e\u200b\x00",
    "x" * 200_000,
]


@pytest.mark.parametrize("title", HOSTILE_TITLES, ids=lambda title: ascii(title)[:30])
async def test_a_hostile_title_of_a_task_is_input_and_never_an_argument(title: str, tmp_path: Path) -> None:
    prints = CodingPreset(
        name="prints",
        program="/bin/sh",
        arguments=lambda call: ["-c", 'echo "$#" "$@"; cat', "prints", *PRESETS["claude"].arguments(call)],
        read=lambda output: CodingAnswer(text=output),
    )
    given = {"SESSION_PATH": str(tmp_path / "session"), "TASK_ID": "task-1", "CONTEXT": title}
    asked = AgentRequest(role=Role.EXECUTOR, input=given, key="k", run_id="r")
    arguments, _, prompt = (await CodingAgent(prints, folder=tmp_path)(asked)).partition("\n")
    usual, _, _ = (await CodingAgent(prints, folder=tmp_path)(request(tmp_path))).partition("\n")
    assert arguments == usual
    assert title.split("\n", maxsplit=1)[0] in prompt
    assert list(tmp_path.iterdir()) == []


OWN_KEYS = {
    "claude": "ANTHROPIC_API_KEY",
    "codex": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "opencode": "OPENROUTER_API_KEY",
}


@pytest.mark.parametrize("name", PRESETS)
async def test_a_program_gets_its_own_keys_and_no_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in (*OWN_KEYS.values(), "DATABASE_PASSWORD", "GITHUB_TOKEN"):
        monkeypatch.setenv(key, "canary")
    prints = replace(
        PRESETS[name],
        program="/usr/bin/env",
        arguments=lambda _: [],
        read=lambda output: CodingAnswer(text=output),
    )
    text = await CodingAgent(prints, folder=tmp_path, env=["GITHUB_*"])(request(tmp_path))
    names = {line.partition("=")[0] for line in text.splitlines() if line.endswith("=canary")}
    assert {OWN_KEYS[name], "GITHUB_TOKEN"} <= names
    assert "DATABASE_PASSWORD" not in names
    assert name == "opencode" or names == {OWN_KEYS[name], "GITHUB_TOKEN"}


@pytest.mark.parametrize("trusted", [False, True])
def test_gemini_checks_a_folder_that_is_not_trusted(trusted: bool) -> None:
    arguments = PRESETS["gemini"].arguments(CodingCall(permission="edit", trusted=trusted))
    assert ("--skip-trust" in arguments) is trusted


async def test_a_preset_of_the_host_runs_any_program(tmp_path: Path) -> None:
    shell = CodingPreset(
        name="shell",
        program="/bin/sh",
        arguments=lambda call: ["-c", "tail -n 1 | head -c 20; pwd", call.model],
        read=lambda output: CodingAnswer(text=output),
    )
    agent = CodingAgent(shell, model="m", folder=tmp_path, instructions="Be strict.")
    assert str(tmp_path) in await agent(request(tmp_path))


async def test_a_program_that_prints_something_else_fails_the_call_with_its_words(tmp_path: Path) -> None:
    broken = CodingPreset(
        name="x", program="/bin/sh", arguments=lambda _: ["-c", "echo oops >&2"], read=json.loads
    )
    with pytest.raises(AgentFailed, match="/bin/sh printed output of an unknown form: oops"):
        await CodingAgent(broken, folder=tmp_path)(request(tmp_path))


async def test_a_program_that_is_not_installed_fails_the_call(tmp_path: Path) -> None:
    missing = CodingPreset(name="x", program="no-such-coder", arguments=lambda _: [], read=json.loads)
    with pytest.raises(AgentFailed, match="no-such-coder cannot be started"):
        await CodingAgent(missing, folder=tmp_path)(request(tmp_path))


def request(folder: Path) -> AgentRequest:
    given = {"SESSION_PATH": str(folder / "session"), "MODE": "INITIALIZE", "USER_REQUEST": "x"}
    return AgentRequest(role=Role.PLANNER, input=given, key="k", run_id="r")
