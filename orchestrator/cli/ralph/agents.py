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

import asyncio
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.launch import model_of
from orchestrator.cli.loop import run_async
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.redaction import bare
from orchestrator.cli.spread import spread
from orchestrator.cli.trust.consent import configuration, is_trusted_folder, project_settings
from orchestrator.errors import ConfigError
from orchestrator.files.named_object import imported
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.model import RalphLimits
from orchestrator.providers.named_model import ModelForm
from orchestrator.runtime.ralph.coding_agent import (
    PRESETS,
    CodingAgent,
    CodingCall,
    CodingPreset,
    CommandAgent,
    answer_of,
)
from orchestrator.runtime.ralph.prompt_agent import PromptAgent
from orchestrator.runtime.service.program import ProgramExit, inherited, last_words, run_program
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
            command = [
                word.replace("{python}", sys.executable).replace("{folder}", self.folder)
                for word in agent.command
            ]
            return CommandAgent(command, timeout=agent.timeout, env=agent.env)
        if agent.agent is not None:
            return CodingAgent(
                imported(agent.agent, "agent") if ":" in agent.agent else agent.agent,
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
        if agent.model is not None:
            settings = project_settings()
            form = ModelForm(
                agent.base_url or settings.base_url, settings.structured, settings.reasoning_field
            )
            return PromptAgent(
                model_of(agent.model, form).llm,
                tools=[imported(one, "tool") for one in agent.tools],
                instructions=agent.instructions,
                params=settings.params,
                retry=build(RetryPolicy, settings.retry, "retry"),
            )
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


# ---- doctor ----

_VERSION_SECONDS = 30.0
_ANSWER_SECONDS = 120.0
_QUESTION = b"Reply with the single word: ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingAgentReport:
    """The state of one coding agent."""

    agent: str
    usable: bool
    path: str | None = None
    version: str | None = None
    problem: str | None = None
    """Why it is not usable, and what to do."""


@spread
def doctor(
    *,
    agents: Annotated[
        Path | None,
        typer.Option(
            "--agents",
            metavar="FILE.toml",
            help="A file of agents, e.g. ralph.toml: check it, and examine its agents.",
        ),
    ] = None,
    ask: Annotated[
        bool,
        typer.Option("--ask", help="Also request one word from each, which its provider may charge."),
    ] = False,
    json: given.Json = False,
) -> int:
    """Show which coding agents are installed and usable.

    They are claude, codex, gemini and opencode, and the exit code is 0 if at least one is usable.

    With --agents they are those that the file names, and the exit code is 0 if all are usable.
    """
    presets = list(PRESETS.values())
    if agents is not None:
        ports = AgentsFile.read(agents).ports().values()
        named = {port.preset.name: port.preset for port in ports if isinstance(port, CodingAgent)}
        presets = list(named.values())

    async def reports() -> list[CodingAgentReport]:
        return list(await asyncio.gather(*(_report(preset, ask=ask) for preset in presets)))

    found = run_async(reports())
    if json:
        say_json({"agents": [asdict(report) for report in found]})
    else:
        for report in found:
            state = "usable" if report.usable else "not usable"
            about = ", ".join(filter(None, (report.version, report.path, report.problem)))
            say(shown(f"{report.agent:<9} {state}: {about}"))
    usable = [report.usable for report in found]
    return Exit.COMPLETED if (any(usable) if agents is None else all(usable)) else Exit.FAILED


async def _report(preset: CodingPreset, *, ask: bool) -> CodingAgentReport:
    path = shutil.which(preset.program)
    if path is None:
        problem = f"not installed: {preset.install or f'there is no program {preset.program!r}'}"
        return CodingAgentReport(agent=preset.name, usable=False, problem=problem)
    about: dict[str, Any] = {"agent": preset.name, "path": path}
    started = await _tried([path, "--version"], b"", _VERSION_SECONDS)
    if not isinstance(started, str):
        about["version"] = started.out.decode(errors="replace").partition("\n")[0].strip()
    elif preset.name in PRESETS:  # another program may have no --version
        return CodingAgentReport(**about, usable=False, problem=started)
    fault = await _answer_problem(preset, path) if ask else None
    return CodingAgentReport(**about, usable=fault is None, problem=fault)


async def _answer_problem(preset: CodingPreset, path: str) -> str | None:
    """Return why a coding agent gives no answer, or None if it gives one."""
    call = CodingCall(permission="read", trusted=is_trusted_folder(Path.cwd()))
    environment = {**inherited(preset.env), **preset.variables(call)}
    ended = await _tried(
        [path, *preset.arguments(call)], _QUESTION, _ANSWER_SECONDS, environment, any_code=True
    )
    if isinstance(ended, str):
        return ended
    answer = answer_of(preset, ended)
    if answer is None:
        return f"it {ended.how}: {last_words(ended.err) or last_words(ended.out)}"
    return answer.error or (None if answer.text else "its answer is empty")


async def _tried(
    argv: list[str],
    given: bytes,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    *,
    any_code: bool = False,
) -> ProgramExit | str:
    """Return the end of a program, or why it did not work."""
    try:
        ended = await run_program(argv, given, seconds=seconds, folder=Path.cwd(), environment=environment)
    except TimeoutError:
        return f"it took longer than {seconds:g} s and was killed"
    except OSError as error:
        return f"it cannot be started ({error.strerror or error})"
    if ended.code and not any_code:
        return f"it {ended.how}: {last_words(ended.err)}"
    return ended
