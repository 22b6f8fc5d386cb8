"""A model as an agent of the ralph loop: it reads and writes files of a folder with tools, and answers for its role.

Each call is a child run of the session's run (see `run_child`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.files import path_safety
from orchestrator.files.atomic import atomic_write, read_file
from orchestrator.llm.port import LLM
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.ralph.contract import OUTPUTS, Role
from orchestrator.machines.ralph.model import AgentPort, AgentRequest
from orchestrator.machines.ralph.reports import report_of
from orchestrator.runtime.facade import Facade
from orchestrator.runtime.llm_loop.agent import Agent, child_agent, run_child
from orchestrator.runtime.llm_loop.hosting import LoopHosting
from orchestrator.runtime.ralph.session import PROGRESS, TRANSITIONS
from orchestrator.tools.spec import ToolSpec, tool

_COMMON = """You are the {role} of a loop that plans, executes and reviews. You work with files: those of the project,
and those of the session in the folder SESSION_PATH. Read what you need before you decide. What the
file in it that ends in .instructions.md says holds for all you do. progress.md is read by you and written by nobody but
the loop. Your answer is the JSON object that is asked for, and nothing else."""

_ROLES: Mapping[Role, str] = {
    Role.PLANNER: """Make the plan and the list of tasks, or change them, as MODE says (INITIALIZE: begin; UPDATE:
take up what is new in CONTEXT; TASK_BREAKDOWN: cut tasks smaller; DISCOVERY: use the answers in plan.questions.md).

plan.md has the headings: Goal & Success Criteria; Target Files/Artifacts; Context & Analysis; Proposed
Design/Changes/Approach; Verification & Testing; Risks & Assumptions.

tasks.md has one item for each task, small enough for one sitting:

# Task List

## Implementation Tasks
- task-1: What is to be done
    - **Type**: Sequential
    - **Files**: [path/one.py, path/two.py]
    - **Objective**: What it is for
    - **Success Criteria**:
        - Something that can be checked
    - **Inherits From**: ids of tasks that must be done first, if any

Ids stay as they are once given. Answer `needs_qa_cycle` when questions must be asked first, `blocked` with `blockers`
when there is no way on, else `completed`.""",
    Role.QUESTIONER: """BRAINSTORM: write the questions whose answers would change the plan into plan.questions.md.
RESEARCH: answer what the files can answer, there. What only a person knows stays unanswered. The form:

# Q&A Discovery: title

## Q&A Cycles

### Cycle 1
#### Generated Questions
1. **[High Priority]** The question
    - **Category**: Technical | Requirements | Constraints | Assumptions | Risks
    - **Priority**: High | Medium | Low
    - **Status**: Unanswered
    - **Impact**: What depends on it
    - **Answer**: [To be filled]
    - **Source**: [To be filled]
    - **Confidence**: [To be filled]

The heading of this cycle has the number CYCLE_NUMBER; earlier cycles stay as they are.""",
    Role.EXECUTOR: """Do the one task TASK_ID of tasks.md, and nothing else. Where CONTEXT has feedback, the last
attempt was not good: do better. Check what you did. Then write a report in SESSION_PATH, into the file
tasks.<TASK_ID>-report.md for the first attempt and tasks.<TASK_ID>-report-r<N>.md for attempt N from 2 on. A report is
never written over. It has: # Task Report, ## PART 1: IMPLEMENTATION REPORT, ### Objective Recap, ### Success Criteria
Status, ### Summary of Changes, ### Verification Results, ### Discovered Tasks. Answer with its name as report_path;
`failed` when the criteria are not met, `blocked` when something is in the way that is not yours to remove. Work that
you found missing goes into discovered_tasks.""",
    Role.REVIEWER: """Look over the work of TASK_ID against every one of its success criteria in tasks.md, in the files
themselves and not only in the report at REPORT_PATH. The verdict is Qualified only if each criterion is met. Say for
each what you saw. With Failed, `feedback` tells the next attempt what to do. Change nothing.""",
    Role.CHECKER: """All tasks are done. Hold the whole against the goal and the success criteria of plan.md and against
what was asked for. `passed` only if the goal is met; else name each missing task. Change nothing.""",
}


def instructions(role: Role) -> str:
    """Return the instructions of a role."""
    return f"{_COMMON.format(role=role.value)}\n\n{_ROLES[role]}"


def rendered(request: AgentRequest) -> str:
    """Return the prompt of a request."""
    parts = [
        f"{name}: {_text(value)}" for name, value in request.input.items() if value not in ({}, [], "", None)
    ]
    if request.notes:
        parts.append("People said:\n" + "\n".join(f"- {note}" for note in request.notes))
    if request.fault:
        parts.append(f"Your last answer could not be used: {request.fault}")
    return "\n\n".join(parts)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


_MOST = 500
"""Maximum number of listed paths."""

Barred = Callable[[str, bool], str | None]
"""(path below the folder, whether the file exists) -> why it may not be written, or None."""


def file_tools(root: Path, barred: Barred | None = None) -> list[ToolSpec]:
    """Return read_file, list_files, write_file and replace_in_file for the folder `root`.

    Paths are relative to it, and no symlink is followed. `barred` returns why a path may not be written, or None.
    """
    files = _Files(root.absolute(), barred or (lambda *_: None))
    read = tool(effect="pure", name="read_file", max_result_chars=60_000)
    return [
        read(files.read_file),
        tool(effect="pure", name="list_files")(files.list_files),
        tool(effect="idempotent", name="write_file")(files.write_file),
        tool(effect="idempotent", name="replace_in_file")(files.replace_in_file),
    ]


class _Files:
    def __init__(self, root: Path, barred: Barred) -> None:
        self._root = root
        self._barred = barred

    async def read_file(self, path: str) -> str:
        """Read a file.

        Args:
            path: From the working folder.
        """
        return await asyncio.to_thread(self._text, path)

    async def list_files(self, folder: str = ".") -> list[str]:
        """List the files below a folder.

        Args:
            folder: From the working folder.
        """
        return await asyncio.to_thread(self._list, folder)

    async def write_file(self, path: str, content: str) -> str:
        """Write a whole file, and the folders it is in; a file that is there is replaced.

        Args:
            path: From the working folder.
            content: All of it.
        """
        return await asyncio.to_thread(self._write, path, content)

    async def replace_in_file(self, path: str, old: str, new: str) -> str:
        """Replace a piece of text that is in a file exactly once.

        Args:
            path: From the working folder.
            old: What is there, with enough around it to be there once.
            new: What is to be there instead.
        """
        return await asyncio.to_thread(self._replace, path, old, new)

    # ---- implementation, in a thread ----

    def _text(self, path: str) -> str:
        found = read_file(path, root=self._root)
        if found.digest is None or found.digest in path_safety.ODD:
            raise FileNotFoundError(f"{path!r} is no file here; list_files says which there are")
        return found.content.decode(errors="replace")

    def _list(self, folder: str) -> list[str]:
        start = self._root if folder in {"", "."} else self._root / path_safety.inside(folder)
        found: list[str] = []
        for where, folders, names in os.walk(start):
            folders[:] = sorted(name for name in folders if name not in {".git", "__pycache__", ".venv"})
            found += [os.path.relpath(os.path.join(where, name), self._root) for name in sorted(names)]  # noqa: PTH118
            if len(found) > _MOST:
                return [*found[:_MOST], "… (there are more; name a folder)"]
        return found

    def _write(self, path: str, content: str) -> str:
        path = path_safety.inside(path)
        there = read_file(path, root=self._root).digest is not None
        if why := self._barred(path, there):
            raise PermissionError(f"{path} may not be written: {why}")
        for parent in reversed(PurePosixPath(path).parents[:-1]):
            path_safety.make_folder(str(parent), root=self._root)
        atomic_write(path, content.encode(), root=self._root)
        return f"{path} written, {len(content)} characters"

    def _replace(self, path: str, old: str, new: str) -> str:
        text = self._text(path)
        if (times := text.count(old)) != 1 or not old:
            raise ValueError(f"that text is in {path} {times} times; give a piece that is there exactly once")
        return self._write(path, text.replace(old, new))


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

    def bound(self, owner: Facade[Any], role: Role) -> AgentPort:
        """Return the port of this agent, with its runs in the journal of `owner`. Raises ConfigError."""
        if not self._folder.is_dir():
            raise ConfigError(f"the folder {self._folder} of the {role.value} does not exist")
        given = file_tools(self._folder, _barred)
        said = instructions(role)
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
        prompt = rendered(replace(request, input=self._here(request.input)))
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
