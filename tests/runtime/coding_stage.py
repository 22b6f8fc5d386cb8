"""Real coding agents of npm, and a model on this machine that tells them what to do.

`coding_agents/package-lock.json` pins Claude Code, Codex, Gemini CLI and OpenCode. All of them bring their binaries in
packages of the registry, one for each system: their install scripts, which would link them, are not run.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orchestrator.ralph import CodingAgent
from tests.node import NODE, node_modules
from tests.providers.loopback import Asked, Loopback, Reply, in_a_thread, json_reply
from tests.providers.wire import CHAT, GEMINI, MESSAGES, RESPONSES, Call, Said, Wire

LOCK = Path(__file__).with_name("coding_agents")
_ROLE = re.compile(r"You are the (\w+) of a loop")
_WIRES: Mapping[str, Wire] = {
    "/messages": MESSAGES,
    "/responses": RESPONSES,
    "/chat/completions": CHAT,
    "enerateContent": GEMINI,
}


_SYSTEMS = ("linux-x64", "linux-arm64", "darwin-arm64", "darwin-x64")
"""npm installs the package of this machine's system only."""


class Program(NamedTuple):
    """A coding agent under test."""

    files: Sequence[str]
    """Its binary in node_modules, one for each platform."""
    write: Callable[[Path, str], Call]
    """The call of its tool that writes a file."""
    options: Callable[[str, Path], dict[str, Any]]
    """Options of CodingAgent for a model server and a home."""


def _claude(url: str, home: Path) -> dict[str, Any]:
    quiet = {"CLAUDE_CODE_MAX_RETRIES": "0", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    return {"environment": {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "k", **quiet}}


def _codex(url: str, home: Path) -> dict[str, Any]:
    provider = (
        f'{{name="loop",base_url="{url}/v1",env_key="MODEL_KEY",wire_api="responses",request_max_retries=0}}'
    )
    arguments = ["-c", f"model_providers.loop={provider}", "-c", 'model_provider="loop"']
    # Its sandbox needs rights that a container may not have.
    return {"arguments": arguments, "environment": {"MODEL_KEY": "k"}, "model": "m", "permission": "all"}


def _gemini(url: str, home: Path) -> dict[str, Any]:
    settings = home / ".gemini" / "settings.json"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}}))
    return {
        "environment": {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "k"},
        "model": "gemini-3-pro-preview",
    }


def _opencode(url: str, home: Path) -> dict[str, Any]:
    options = {"baseURL": f"{url}/v1", "apiKey": "k"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"m": {}}}
    config = {"provider": {"loop": provider}, "autoupdate": False, "share": "disabled"}
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return {"environment": {"OPENCODE_CONFIG_CONTENT": json.dumps(config), **quiet}, "model": "loop/m"}


PROGRAMS: Mapping[str, Program] = {
    "claude": Program(
        tuple(f"@anthropic-ai/claude-code-{system}/claude" for system in _SYSTEMS),
        lambda path, text: Call("Write", {"file_path": str(path), "content": text}),
        _claude,
    ),
    "codex": Program(
        ("@openai/codex/bin/codex.js",),
        lambda path, text: Call(
            "exec_command", {"cmd": f"printf %s {shlex.quote(text)} > {shlex.quote(str(path))}"}
        ),
        _codex,
    ),
    "gemini": Program(
        ("@google/gemini-cli/bundle/gemini.js",),
        lambda path, text: Call("write_file", {"file_path": str(path), "content": text}),
        _gemini,
    ),
    "opencode": Program(
        tuple(f"opencode-{system}/bin/opencode" for system in _SYSTEMS),
        lambda path, text: Call("write", {"filePath": str(path), "content": text}),
        _opencode,
    ),
}


def binary(name: str) -> Path:
    """The installed program; skips the test where npm cannot install it.

    The lock has OpenCode's binary for Linux on x64 only: npm locks a binary of another system on such a machine.
    """
    modules = node_modules(LOCK)
    found = next((path for file in PROGRAMS[name].files if (path := modules / file).exists()), None)
    if found is None:
        pytest.skip(
            f"{LOCK.name}/package-lock.json has no {name} for {platform.system()} {platform.machine()}"
        )
    return found


class RoleModel:
    """A model for each role of the loop: what it says in answer to each request of the role, in order.

    The last answer is repeated. Requests without tools, such as those for a title, get a word.
    """

    def __init__(self, script: Mapping[str, Sequence[Said | Reply]]) -> None:
        self.script = script
        self.requests: Counter[str] = Counter()
        self.bodies: dict[str, list[str]] = {}

    def __call__(self, asked: Asked) -> Reply:
        wire = next((wire for part, wire in _WIRES.items() if part in asked.path), None)
        if asked.method != "POST" or wire is None or "count_tokens" in asked.path:
            return json_reply({"data": [], "models": [], "input_tokens": 1})
        text = asked.body.decode()
        role = _ROLE.findall(text)
        if not role or not asked.json.get("tools"):
            return wire.reply(asked, "Work.")
        said = self.script[role[-1]]
        number = self.requests[role[-1]]
        self.requests[role[-1]] += 1
        self.bodies.setdefault(role[-1], []).append(text)
        answer = said[min(number, len(said) - 1)]
        if isinstance(answer, Reply):
            return answer
        return wire.reply(asked, replace(answer, id=f"call_{number}") if isinstance(answer, Call) else answer)


class CodingStage(NamedTuple):
    """A project with a home of its own, and a model server."""

    server: Loopback
    project: Path
    home: Path

    def agent(self, name: str, **more: Any) -> CodingAgent:
        given = {**PROGRAMS[name].options(self.server.url, self.home), **more}
        environment = {**self.environment(name), **given.pop("environment", {})}
        return CodingAgent(
            name, folder=self.project, trusted=True, timeout=100, environment=environment, **given
        )

    def environment(self, name: str) -> dict[str, str]:
        """Put a program on PATH, and return the variables of its home and of the model server."""
        place = self.home / "bin" / name
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            place.symlink_to(binary(name))
        clean = {"HOME": str(self.home), "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": "", "CI": "1"}
        path = {"PATH": f"{self.home}/bin:{NODE.parent}:/usr/bin:/bin"}
        own: dict[str, str] = PROGRAMS[name].options(self.server.url, self.home)["environment"]
        return {**clean, **path, **own}


@contextmanager
def coding_stage(
    script: Mapping[str, Sequence[Said | Reply]], folder: Path
) -> Iterator[tuple[CodingStage, RoleModel]]:
    model = RoleModel(script)
    project, home = folder / "project", folder / "home"
    project.mkdir(exist_ok=True)
    home.mkdir()
    # What these programs send is not ours, and goes beyond the rules that our requests are held to.
    with in_a_thread(model, strict=False) as server:
        yield CodingStage(server, project, home), model
