"""The agents of a ralph loop in a TOML file: planner, questioner, executor, reviewer and checker.

    open_questions = "proceed"              # or "fail": the effect when no round of questions is left

    [limits]                                # members of RalphLimits

    [agents.planner]                        # planner, executor, reviewer; questioner and checker may be left out
    command = ["{python}", "{folder}/x.py"] # a program, started without a shell in the working directory
    timeout = 600                           #   seconds; 0 means no limit
    env = ["GITHUB_TOKEN"]                  #   further environment variables, or patterns; ["*"] is all of them

    [agents.executor]
    python = "module:function"              # a callable that takes the request

    [agents.reviewer]
    model = "openai:NAME"                   # a model with tools for the files of the working directory
    tools = ["module:function"]             #   further tools
    instructions = "Be strict."             #   appended to those of its role

    [agents.checker]
    agent = "claude"                        # claude, codex, gemini, opencode, or "module:PRESET"
    model = "sonnet"                        #   its model; without it, the default of the program
    permission = "edit"                     #   read, edit or all
    timeout = 1800
    max_turns = 50                          #   max_turns and max_cost, where the program enforces them
    instructions = "Be strict."
    arguments = ["--add-dir", "../lib"]     #   further arguments
    env = ["GITHUB_*"]                      #   as of a command; the keys of the program itself are passed anyway

The content of the file is stored with the run, so that `resume` does not need it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from orchestrator.cli.launch import ModelForm, model_of
from orchestrator.cli.load import imported
from orchestrator.cli.redaction import bare
from orchestrator.cli.trust.consent import configuration, is_trusted_folder, project_settings
from orchestrator.errors import ConfigError
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.limits import RalphLimits
from orchestrator.runtime.ralph.coding_agent import CommandAgent
from orchestrator.settings import build

OPTIONAL = frozenset((Role.QUESTIONER, Role.CHECKER))
_WAYS = ("python", "command", "agent", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleAgent:
    """The agent of a role: exactly one of python, command, agent and model; `agent` may have a `model`."""

    python: str | None = None
    command: tuple[str, ...] = ()
    timeout: float = 0.0
    model: str | None = None
    base_url: str | None = None
    instructions: str = ""
    tools: tuple[str, ...] = ()
    agent: str | None = None
    permission: str = "edit"
    max_turns: int = 0
    max_cost: float = 0.0
    arguments: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsFile:
    """The content of a file of agents. Its objects are not imported and its programs not started yet."""

    agents: Mapping[str, RoleAgent]
    limits: Mapping[str, Any] = field(default_factory=dict)
    open_questions: str = "proceed"
    folder: str = ""
    """Absolute path of the file."""

    @classmethod
    def read(cls, file: Path) -> AgentsFile:
        """Read a file of agents that the user trusts. Raises ConfigError or OSError."""
        return cls.of({**configuration(file), "folder": str(file.absolute().parent)}, str(file))

    @classmethod
    def of(cls, members: Mapping[str, Any], where: str) -> AgentsFile:
        """Create the agents from plain data. Raises ConfigError."""
        given = members.get("agents")
        if not isinstance(given, Mapping) or not all(isinstance(one, Mapping) for one in given.values()):
            raise ConfigError(f"{where} has no [agents.planner], [agents.executor], [agents.reviewer]")
        if strange := sorted(given.keys() - set(Role)):
            raise ConfigError(f"{where}: unknown agent {strange[0]!r}; known: {', '.join(Role)}")
        if missing := [role for role in Role if role not in OPTIONAL and role.value not in given]:
            raise ConfigError(f"{where} has no [agents.{missing[0]}]")
        agents = {name: _agent(one, f"{where}: agents.{name}") for name, one in given.items()}
        found: AgentsFile = build(cls, {**members, "agents": agents}, where)
        found.ralph_limits()
        if found.open_questions not in {"proceed", "fail"}:
            raise ConfigError(f"{where}: open_questions is {found.open_questions!r}; known: proceed, fail")
        return found

    def ralph_limits(self, changes: Mapping[str, Any] | None = None) -> RalphLimits:
        """Return the limits with others put over them. Raises ConfigError."""
        return build(RalphLimits, {**self.limits, **(changes or {})}, "limits")

    def ports(self) -> dict[str, Any]:
        """Import and construct the agents, by role. Raises ConfigError, ImportError or OSError."""
        return {name: self._port(name, agent) for name, agent in self.agents.items()}

    def _port(self, name: str, agent: RoleAgent) -> Any:
        if agent.command:
            places = {"{python}": sys.executable, "{folder}": self.folder}
            command = [_filled(word, places) for word in agent.command]
            return CommandAgent(command, timeout=agent.timeout, env=agent.env)
        if agent.agent is not None:
            return _coding_agent(agent, agent.agent)
        if agent.model is not None:
            return _prompted(agent, agent.model)
        found = imported(str(agent.python), f"agents.{name}")
        if not callable(found):
            raise ConfigError(
                f"agents.{name}: {agent.python!r} is a {type(found).__name__}, which cannot be called"
            )
        return found


def _agent(given: Mapping[str, Any], where: str) -> RoleAgent:
    agent: RoleAgent = build(RoleAgent, given, where)
    ways = [way for way in _WAYS if getattr(agent, way)]
    if len(ways) != 1 and ways != ["agent", "model"]:
        raise ConfigError(f"{where} takes one of {', '.join(_WAYS)}, not {len(ways)}")
    if agent.base_url is not None and bare(agent.base_url) != agent.base_url:
        raise ConfigError(
            f"{where}: base_url has a user, a password or a query, which would be stored with the run"
        )
    return agent


def _coding_agent(agent: RoleAgent, name: str) -> Any:
    from orchestrator.runtime.ralph.coding_agent import CodingAgent

    return CodingAgent(
        imported(name, "agent") if ":" in name else name,
        model=agent.model or "",
        permission=cast("Any", agent.permission),
        timeout=agent.timeout,
        max_turns=agent.max_turns,
        max_cost=agent.max_cost,
        instructions=agent.instructions,
        arguments=agent.arguments,
        trusted=is_trusted_folder(Path.cwd()),
        env=agent.env,
    )


def _prompted(agent: RoleAgent, model: str) -> Any:
    from orchestrator.runtime.ralph.prompt_agent import PromptAgent

    settings = project_settings()
    form = ModelForm(agent.base_url or settings.base_url, settings.structured, settings.reasoning_field)
    return PromptAgent(
        model_of(model, form).llm,
        tools=[imported(one, "tool") for one in agent.tools],
        instructions=agent.instructions,
        params=settings.params,
        retry=build(RetryPolicy, settings.retry, "retry"),
    )


def _filled(word: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        word = word.replace(place, value)
    return word
