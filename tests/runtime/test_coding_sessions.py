"""A role of the ralph loop continues the session of its coding agent, in the process of a resumed run too."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from orchestrator import MemoryJournal, Runtime
from orchestrator.llm.usage import Usage
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.model import RoleCall
from orchestrator.ralph import AgentRequest, CodingAgent, CodingAnswer, CodingPreset, Ralph
from tests.runtime.ralph_stage import NOT_QUALIFIED, World
from tests.runtime.stage import until

PROGRAM = """
import json, pathlib, re, sys, time

folder, role, session = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with (folder / "called").open("a") as file:
    file.write(f"{session}\\n")
calls = len((folder / "called").read_text().split())
if (folder / "hangs").exists() and calls == 2:
    time.sleep(600)
if session != "new" and (folder / "lost").exists():
    sys.exit("there is no such session")
for report in set(re.findall(r"tasks[.]task-1-report[-\\w]*[.]md", sys.stdin.read())):
    (folder / "s" / "one" / report).write_text("# Task Report\\n\\n## PART 1: IMPLEMENTATION REPORT\\n\\ndone\\n")
print(json.dumps({"session": f"{role}-{calls}"}))
"""


def preset(folder: Path) -> CodingPreset:
    """A program that notes the session of each call, and gives each answer a session of its own."""

    def read(output: str) -> CodingAnswer:
        session = json.loads(output)["session"]
        return CodingAnswer(text='{"status": "completed"}', session=session, usage=Usage(1, 1, cost=0.0))

    return CodingPreset(
        name="fake",
        program=sys.executable,
        arguments=lambda call: ["-c", PROGRAM, str(folder), "executor", call.session or "new"],
        read=read,
    )


def ralph(folder: Path, journal: MemoryJournal, *reviews: dict[str, str]) -> Ralph:
    """A loop; each object stands for a process. The task is qualified after these reviews."""
    others = World(folder, {Role.REVIEWER: reviews}, tasks=("task-1: one",))
    coder = CodingAgent(preset(folder), folder=folder)
    return Ralph(others, coder, others, root=folder / "s", runtime=Runtime(journal=journal, observers=()))


def called(folder: Path) -> list[str]:
    path = folder / "called"
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "s" / "one").mkdir(parents=True)
    return tmp_path


async def test_a_resumed_run_continues_the_recorded_session_of_a_role(place: Path) -> None:
    (place / "hangs").touch()
    journal = MemoryJournal()
    first = ralph(place, journal, NOT_QUALIFIED)
    task = asyncio.ensure_future(first.run("x", session=place / "s" / "one", run_id="r"))

    async def second_attempt() -> bool:
        return len(called(place)) == 2

    await until(second_attempt)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert called(place) == ["new", "executor-1"]

    (place / "hangs").unlink()
    result = await ralph(place, journal).resume("r")
    assert result.outcome == "completed", result.error
    assert called(place) == ["new", "executor-1", "executor-1"]
    sessions = [one.session for one in result.agent_calls if one.role is Role.EXECUTOR]
    assert sessions == ["executor-1", "executor-3"]


async def test_a_session_that_the_program_does_not_have_is_replaced_by_a_new_one(place: Path) -> None:
    (place / "lost").touch()
    result = await ralph(place, MemoryJournal(), NOT_QUALIFIED).run("x", session=place / "s" / "one")
    assert result.outcome == "completed", result.error
    assert called(place) == ["new", "executor-1", "new"]


LAST = RoleCall(role=Role.EXECUTOR, task_id="task-1", agent="fake", session="old")
NOT_CONTINUED = {
    "it failed": RoleCall(role=Role.EXECUTOR, task_id="task-1", agent="fake", session="old", failed=True),
    "it is of another program": RoleCall(role=Role.EXECUTOR, task_id="task-1", agent="other", session="old"),
    "it has none": RoleCall(role=Role.EXECUTOR, task_id="task-1", agent="fake"),
}


@pytest.mark.parametrize("case", NOT_CONTINUED)
async def test_the_session_of_the_last_call_is_not_continued_because(case: str, place: Path) -> None:
    coder = CodingAgent(preset(place), folder=place)
    given = {
        "SESSION_PATH": str(place / "s" / "one"),
        "TASK_ID": "task-1",
        "ATTEMPT_NUMBER": 1,
        "CONTEXT": {},
    }
    for last in (LAST, NOT_CONTINUED[case]):
        request = AgentRequest(role=Role.EXECUTOR, input=given, key="k", run_id="r", previous=last)
        await coder(request)
    assert called(place) == ["old", "new"]
