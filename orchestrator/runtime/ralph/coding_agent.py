"""A coding agent (Claude Code, Codex, Gemini CLI, OpenCode) as an agent of the ralph loop.

The program is called in its non-interactive mode with the instructions of the role, the request and the JSON schema of
the answer. Reviewers and checkers may read only. The session, the tokens and the cost of each call are in the result of
the run and in its journal, and count for its limits.

A role continues its session for the same task: a repeated request, and the next attempt after a review, find what was
done before. The session is that of the last call in the journal, so a resumed run continues it too. After a failed call
the role starts another session. If the program does not have the session, for example on another machine, the call is
made in a new one: a call that fails without a token has done nothing. To recognize the message of each program was
rejected, because it changes with their versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.errors import ConfigError
from orchestrator.llm.usage import is_amount
from orchestrator.machines.ralph.contract import OUTPUTS, Role
from orchestrator.machines.ralph.fault import AgentFailed
from orchestrator.machines.ralph.ports import AgentRequest
from orchestrator.providers.structured_output import instruction
from orchestrator.runtime.ralph import prompt as ralph_prompt
from orchestrator.runtime.ralph.coding_preset import (
    PERMISSIONS,
    PRESETS,
    CodingAnswer,
    CodingCall,
    CodingPreset,
    Permission,
    answer_of,
)
from orchestrator.runtime.ralph.command_agent import agent_failed, run_agent_program
from orchestrator.runtime.service.program import ProgramExit, check_names, inherited, last_words

_READERS: Final = frozenset((Role.REVIEWER, Role.CHECKER))
_SHOWN: Final = 500


class CodingAgent:
    """A coding agent, for any role of a Ralph loop.

    Args:
        agent: `claude`, `codex`, `gemini` or `opencode`, or a `CodingPreset` of the host.
        model: Name of the model as the program takes it; empty means the default of the program.
        permission: What planner, questioner and executor may do: `read`, `edit` (files of the folder) or `all` (any
            program, without a question). Reviewer and checker `read`, unless it is `all`.
        timeout: Maximum seconds of a call; 0 means no limit.
        max_turns, max_cost: Maximum requests to the model and US dollars of a call, for programs that enforce
            them; 0 is no limit.
        instructions: Text after the instructions of its role.
        arguments: Further arguments of the program, before those of the preset.
        folder: Working folder; the current one by default. It must contain the session.
        trusted: You trust the content of the folder. Gemini CLI checks this by itself; with True its check is off.
        env: Names or patterns of the variables of this process that the program gets, in addition to those of the
            preset and those that every program gets (PATH, HOME, the locale, proxies, certificates); `["*"]` is the
            whole environment.
        environment: Further variables with their values.

    Raises:
        ConfigError: An argument cannot work.

    Example:
        coder = CodingAgent("claude", model="sonnet", timeout=1800)
        await Ralph(coder, coder, CodingAgent("codex")).run("Add a health check")
    """

    def __init__(
        self,
        agent: str | CodingPreset,
        *,
        model: str = "",
        permission: Permission = "edit",
        timeout: float = 0.0,
        max_turns: int = 0,
        max_cost: float = 0.0,
        instructions: str = "",
        arguments: Sequence[str] = (),
        folder: Path | str = ".",
        trusted: bool = False,
        env: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.preset = _preset(agent)
        if permission not in PERMISSIONS:
            raise ConfigError(f"permission is {permission!r}; possible: {', '.join(PERMISSIONS)}")
        if not (timeout >= 0 and math.isfinite(timeout)):
            raise ConfigError(f"timeout is {timeout!r}; it must be 0 (any time) or more seconds")
        _check_limits(self.preset, {"max_turns": max_turns, "max_cost": max_cost})
        if isinstance(arguments, str):
            raise ConfigError(f"arguments is {arguments!r}; give a list of words")
        self._call = CodingCall(
            permission=permission, model=model, max_turns=max_turns, max_cost=max_cost, trusted=trusted
        )
        self._timeout = timeout or None
        self._instructions = instructions
        self._arguments = tuple(arguments)
        self._folder = Path(folder)
        self.env = (*self.preset.env, *check_names(env))
        self._environment = dict(environment or {})

    def __repr__(self) -> str:
        return f"CodingAgent({self.preset.name!r})"

    async def __call__(self, request: AgentRequest) -> str:
        """Call the program for a request and return its answer. Raises AgentFailed, ConfigError."""
        call = replace(
            self._call,
            session=self._session(request),
            permission=self._may(request.role),
            max_cost=self._cost_limit(request),
        )
        ended = await self._run(request, call)
        if call.session is not None and self._did_nothing(ended):
            ended = await self._run(request, replace(call, session=None))
        answer = self._read(request, ended)
        model = answer.model or call.model
        request.spend(answer.usage, agent=self.preset.name, model=model, session=answer.session)
        if answer.error is not None:
            raise self._failed(request, f"failed: {answer.error[:_SHOWN]}", retriable=answer.retriable)
        return answer.text

    async def _run(self, request: AgentRequest, call: CodingCall) -> ProgramExit:
        return await run_agent_program(
            request,
            [self.preset.program, *self._arguments, *self.preset.arguments(call)],
            self._prompt(request).encode(),
            seconds=self._timeout,
            folder=self._folder,
            environment={
                **inherited(self.env),
                **self._folder_variable(),
                **self.preset.variables(call),
                **self._environment,
            },
        )

    def _session(self, request: AgentRequest) -> str | None:
        """Return the session to continue: that of the last call for the same work, if this program answered it."""
        last = request.previous
        return None if last is None or last.failed or last.agent != self.preset.name else last.session

    def _did_nothing(self, ended: ProgramExit) -> bool:
        """Return whether a program failed before it used a token, and would fail again in the same way."""
        answer = answer_of(self.preset, ended)
        if answer is None or answer.error is None:
            return answer is None and ended.code != 0
        return not (answer.retriable or answer.usage.input_tokens or answer.usage.output_tokens)

    def _folder_variable(self) -> Mapping[str, str]:
        """Return the variable with the working folder, as a shell sets it: OpenCode reads it."""
        return {"PWD": str(self._folder.absolute())}

    def _cost_limit(self, request: AgentRequest) -> float:
        """Return the maximum cost of a call: its own, or the rest of the run's if that is less."""
        rest = request.remaining_cost
        if rest is None or "max_cost" not in self.preset.limits:
            return self._call.max_cost
        return min(self._call.max_cost or rest, rest)

    def _may(self, role: Role) -> Permission:
        return "read" if role in _READERS and self._call.permission != "all" else self._call.permission

    def _prompt(self, request: AgentRequest) -> str:
        session, folder = Path(request.input["SESSION_PATH"]).absolute(), self._folder.absolute()
        if not session.is_relative_to(folder):
            raise ConfigError(f"the session {session} is outside of {folder}, where {self.preset.name} works")
        here = {**request.input, "SESSION_PATH": str(session.relative_to(folder))}
        parts = [
            ralph_prompt.instructions(request.role),
            self._instructions,
            ralph_prompt.rendered(replace(request, input=here)),
            instruction(OUTPUTS[request.role].model_json_schema()),
        ]
        return "\n\n".join(filter(None, parts))

    def _read(self, request: AgentRequest, ended: ProgramExit) -> CodingAnswer:
        """Return the answer of a program. Raises AgentFailed if its output cannot be read."""
        answer = answer_of(self.preset, ended)
        if answer is not None:
            return answer
        said = last_words(ended.err) or last_words(ended.out)
        how = ended.how if ended.code else "printed output of an unknown form"
        raise self._failed(request, how + (f": {said}" if said else ""))

    def _failed(self, request: AgentRequest, how: str, *, retriable: bool = False) -> AgentFailed:
        return agent_failed(request, self.preset.program, how, retriable=retriable)


def _preset(agent: object) -> CodingPreset:
    if isinstance(agent, CodingPreset):
        return agent
    if agent in PRESETS:
        return PRESETS[str(agent)]
    raise ConfigError(f"agent is {agent!r}; possible: {', '.join(PRESETS)}, or a CodingPreset")


def _check_limits(preset: CodingPreset, limits: Mapping[str, float]) -> None:
    for name, value in limits.items():
        if not is_amount(value):
            raise ConfigError(f"{name} is {value!r}; it must be 0 (no limit) or more")
        if value and name not in preset.limits:
            raise ConfigError(f"{preset.name} enforces no {name}; use timeout")
