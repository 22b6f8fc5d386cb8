"""`orchestrator ralph doctor`, with programs on PATH that behave in every way, and coding agents in an agents file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.ralph.agents import AgentsFile
from orchestrator.errors import ConfigError
from orchestrator.runtime.ralph.coding_agent import CodingAgent

Cli = Callable[..., Any]
READY = {"type": "result", "result": "ready", "session_id": "s", "is_error": False, "total_cost_usd": 0.01}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a shell script on PATH, which has no other program of these names."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def add(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return add


def lines(cli: Cli, *options: str, code: int = 0) -> list[str]:
    done = cli("ralph", "doctor", *options)
    assert done.code == code, done.err
    found: list[str] = done.out.splitlines()
    return found


def test_nothing_installed_is_exit_code_1_and_names_the_commands(cli: Cli, programs: Any) -> None:
    found = lines(cli, code=1)
    assert found[0] == "claude    not usable: not installed: npm install -g @anthropic-ai/claude-code"
    assert [line.split()[0] for line in found] == ["claude", "codex", "gemini", "opencode"]


def test_an_installed_program_has_its_version_and_path_and_a_broken_one_its_error(
    cli: Cli, programs: Any
) -> None:
    programs("claude", "echo 2.1.330")
    programs("codex", "echo no such library >&2; exit 3")
    found = lines(cli)
    assert found[0].startswith("claude    usable: 2.1.330, ")
    assert "codex     not usable" in found[1]
    assert "it ended with exit code 3: no such library" in found[1]


def test_ask_tells_a_program_that_answers_from_one_without_credentials(cli: Cli, programs: Any) -> None:
    said = json.dumps({**READY, "is_error": True, "result": "Invalid API key"})
    programs("claude", f"cat >/dev/null; echo '{said}'")
    assert "claude    not usable" in lines(cli, "--ask", code=1)[0]
    assert "Invalid API key" in lines(cli, "--ask", code=1)[0]
    programs("claude", f"cat >/dev/null; echo '{json.dumps(READY)}'")
    done = cli("ralph", "doctor", "--ask", "--json")
    first = json.loads(done.out)["agents"][0]
    assert (first["agent"], first["usable"], first["problem"]) == ("claude", True, None)


# ---- agents files ----

AIDER = """
from orchestrator.ralph import CodingAnswer, CodingPreset

AIDER = CodingPreset(
    name="aider", program="aider", arguments=lambda call: [], read=lambda output: CodingAnswer(text=output.strip())
)
"""
FILE = "".join(
    f'[agents.{role}]\nagent = "{agent}"\n'
    for role, agent in {"planner": "claude", "executor": "own:AIDER", "reviewer": "claude"}.items()
)


def test_the_agents_of_a_file_are_examined_with_those_of_the_host(
    cli: Cli, programs: Any, folder: Path
) -> None:
    (folder / "own.py").write_text(AIDER)
    (folder / "ralph.toml").write_text(FILE)
    of_file = ("--agents", "ralph.toml")
    programs("claude", "echo 2.1.330")
    found = lines(cli, *of_file, code=1)
    assert found[1:] == ["aider     not usable: not installed: there is no program 'aider'"]
    programs("aider", 'test "$1" = --version && exit 2; cat >/dev/null; echo ready')
    found = lines(cli, *of_file)
    assert [line.partition(": ")[0] for line in found] == ["claude    usable", "aider     usable"]
    assert "aider     usable" in lines(cli, *of_file, "--ask", code=1)[1]


def test_a_file_with_an_unknown_agent_is_one_sentence(
    cli: Cli, folder: Path, one_sentence: Callable[[Any], str]
) -> None:
    (folder / "ralph.toml").write_text(FILE.replace('"claude"', '"clod"', 1))
    done = cli("ralph", "doctor", "--agents", "ralph.toml")
    assert done.code == 2
    assert "agent is 'clod'; possible: claude, codex, gemini, opencode" in one_sentence(done)


OTHERS = {"executor": {"agent": "codex"}, "reviewer": {"agent": "claude", "model": "sonnet", "max_turns": 9}}


def test_coding_agents_of_an_agents_file_are_built_with_their_options() -> None:
    file = AgentsFile.of(
        {"agents": {"planner": {"agent": "gemini", "permission": "all"}, **OTHERS}}, "ralph.toml"
    )
    ports = file.ports()
    assert [type(port) for port in ports.values()] == [CodingAgent] * 3
    assert (ports["reviewer"]._call.model, ports["reviewer"]._call.max_turns) == ("sonnet", 9)


@pytest.mark.parametrize(
    ("planner", "said"),
    [
        (
            {"agent": "cursor"},
            "agent is 'cursor'; possible: claude, codex, gemini, opencode, or a CodingPreset",
        ),
        ({"agent": "codex", "max_turns": 3}, "codex enforces no max_turns; use timeout"),
        ({"agent": "claude", "max_cost": -1.0}, "max_cost is -1.0; it must be 0 (no limit) or more"),
        ({"agent": "claude", "permission": "root"}, "permission is 'root'; possible: read, edit, all"),
        ({"agent": "claude", "timeout": -1.0}, "timeout is -1.0; it must be 0 (any time) or more seconds"),
        ({"agent": "claude", "command": ["x"]}, "takes one of python, command, agent, model, not 2"),
    ],
)
def test_a_coding_agent_that_cannot_work_is_one_sentence(planner: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        AgentsFile.of({"agents": {"planner": planner, **OTHERS}}, "ralph.toml").ports()
    assert said in str(refused.value)


def test_the_refusal_of_an_untrusted_agents_file_names_its_coding_agents(tmp_path: Path) -> None:
    file = tmp_path / "ralph.toml"
    file.write_text('[agents.planner]\nagent = "claude"\narguments = ["--add-dir", "/etc"]\n')
    with pytest.raises(ConfigError) as refused:
        AgentsFile.read(file)
    assert all(f"use {word}" in str(refused.value) for word in ("agent 'claude'", "arguments '/etc'"))
