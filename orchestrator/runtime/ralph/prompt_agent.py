"""A model as an agent of the ralph loop: it reads and writes files of a folder with tools, and answers for its role.

Each call is a child run of the session's run (see `child_agent`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.llm.port import LLM
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.ralph.contract import OUTPUTS, Role
from orchestrator.machines.ralph.ports import AgentPort, AgentRequest
from orchestrator.machines.ralph.reports import report_of
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.ralph import prompt as ralph_prompt
from orchestrator.runtime.ralph.session.directory import PROGRESS, TRANSITIONS
from orchestrator.runtime.service.child_agent import child_agent, run_child
from orchestrator.runtime.service.file_tools import file_tools
from orchestrator.runtime.service.hosting import LoopHosting
from orchestrator.runtime.service.run_service import RunService

_READERS = frozenset((Role.REVIEWER, Role.CHECKER))
"""Roles without write access."""
_READING = frozenset(("read_file", "list_files"))


class PromptAgent:
    """An agent that is executed by a model, for any role of a Ralph loop.

    Args:
        model: The model.
        folder: Folder of its file tools; the current one by default. It must contain the session.
        tools: Further tools, for example to run tests.
        instructions: Text after the instructions of its role.
        limits: Limits of one call.
        retry, params: As for Agent.
    """

    def __init__(
        self,
        model: LLM,
        *,
        folder: Path | str = ".",
        tools: Iterable[Any] = (),
        instructions: str = "",
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._tools = tuple(tools)
        self._instructions = instructions
        self._options = {"model": model, "limits": limits, "retry": retry, "params": params}

    def bound(self, owner: RunService[Any], role: Role) -> AgentPort:
        """Return the port of this agent, with its runs in the journal of `owner`. Raises ConfigError."""
        if not self._folder.is_dir():
            raise ConfigError(f"the folder {self._folder} of the {role.value} does not exist")
        given = file_tools(self._folder, _barred)
        said = ralph_prompt.instructions(role)
        options = {
            **self._options,
            "tools": [*(one for one in given if role not in _READERS or one.name in _READING), *self._tools],
            "instructions": f"{said}\n\n{self._instructions}" if self._instructions else said,
        }
        return BoundAgent(child_agent(owner, OUTPUTS[role], options), self._folder.absolute())


class BoundAgent:
    """A PromptAgent as a port of a loop."""

    def __init__(self, agent: Agent, folder: Path) -> None:
        self._agent = agent
        self._folder = folder

    @property
    def hosting(self) -> LoopHosting:
        """Engine-only interface of the model's agent."""
        return self._agent.hosting

    async def __call__(self, request: AgentRequest) -> Any:
        """Start or resume the model's run. Raises RunStopped if it did not complete."""
        # A repeated request is another run: the answer of the first one is in the journal and does not change.
        key = f"{request.key}:again{request.again}" if request.again else request.key
        prompt = ralph_prompt.rendered(replace(request, input=self._here(request.input)))
        result = await run_child(
            self._agent,
            request.run_id,
            key,
            prompt,
            follower=lambda ended: request.spend(ended.usage, child_run_id=ended.run_id),
        )
        return result.raise_for_outcome().output

    def _here(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the input with the session folder relative to the tools' folder.

        Raises ConfigError if it is outside.
        """
        session = Path(given["SESSION_PATH"]).absolute()
        if not session.is_relative_to(self._folder):
            raise ConfigError(f"the session {session} is outside of {self._folder}, where the model works")
        return {**given, "SESSION_PATH": str(session.relative_to(self._folder))}


def _barred(path: str, there: bool) -> str | None:  # noqa: FBT001 - the signature of file_tools
    """Return why a model may not write a file of a session, or None."""
    name = path.rpartition("/")[2]
    if name in {PROGRESS, TRANSITIONS}:
        return "only the loop writes it"
    if there and report_of(name):
        return "a report is never written over; each attempt has one of its own"
    return None
