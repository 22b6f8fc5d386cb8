"""Models as the agents of a ralph loop: they use tools on the files, answer as their role, and live below the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import MemoryJournal, Outcome, Request
from orchestrator.errors import ConfigError
from orchestrator.machines.ralph.contract import Role
from orchestrator.providers.scripted import call
from orchestrator.runtime.ralph.prompt_agent import PromptAgent
from orchestrator.runtime.ralph.ralph import Ralph
from orchestrator.testing import ScriptedLLM

TASKS = "# Task List\n\n## Implementation Tasks\n- task-1: Say hello\n    - **Success Criteria**: hello.txt has it\n"
DONE = json.dumps({"status": "completed"})
QUALIFIED = json.dumps({"status": "completed", "verdict": "Qualified"})


def script(folder: Path) -> dict[Role, list[Any]]:
    """What each model says; the session's folder is found in what it is asked."""

    def in_session(name: str, content: str) -> Any:
        def turn(request: Request) -> Any:
            asked = next(message.text for message in request.messages if message.role == "user")
            (line,) = (line for line in asked.splitlines() if line.startswith("SESSION_PATH: "))
            return call("write_file", path=f"{line.removeprefix('SESSION_PATH: ')}/{name}", content=content)

        return turn

    return {
        Role.PLANNER: [in_session("tasks.md", TASKS), in_session("progress.md", "- [x] task-1"), DONE],
        Role.EXECUTOR: [
            call("write_file", path="hello.txt", content="hullo"),
            call("write_file", path="hello.txt", content="hello"),
            in_session("tasks.task-1-report.md", "# Task Report\n"),
            in_session("tasks.task-1-report.md", "no, this"),
            "I did it.",
            DONE,
        ],
        Role.REVIEWER: [call("read_file", path="hello.txt"), QUALIFIED],
        Role.CHECKER: [call("write_file", path="hello.txt", content="mine"), '{"passed": true}'],
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_four_models_do_a_whole_run_with_tools_on_its_files(here: Path) -> None:
    llms = {role: ScriptedLLM(said) for role, said in script(here).items()}
    ralph = Ralph(
        PromptAgent(llms[Role.PLANNER]),
        PromptAgent(llms[Role.EXECUTOR], instructions="Be kind."),
        PromptAgent(llms[Role.REVIEWER]),
        checker=PromptAgent(llms[Role.CHECKER]),
        journal=(journal := MemoryJournal()),
        observers=(),
    )
    result = await ralph.run("Say hello")
    assert (result.outcome, result.error) == (Outcome.COMPLETED, None)
    for llm in llms.values():
        llm.assert_complete()
    assert (here / "hello.txt").read_text() == "hello"
    session = Path(result.session_path)
    assert (
        (session / "tasks.task-1-report.md")
        .read_text()
        .startswith("# Task Report\n\n---\n## PART 2: REVIEW REPORT")
    )
    assert "- [x] task-1: Say hello" in (session / "progress.md").read_text()
    planner, executor = llms[Role.PLANNER].requests, llms[Role.EXECUTOR].requests
    assert "only the loop writes it" in planner[-1].messages[-1].text
    assert any("a report is never written over" in message.text for message in executor[-1].messages)
    assert "Be kind." in executor[0].messages[0].text
    assert "TASK_ID: task-1\n" in executor[0].messages[1].text
    offered = {role: [tool.name for tool in llm.requests[0].tools] for role, llm in llms.items()}
    assert offered[Role.PLANNER] == ["read_file", "list_files", "write_file", "replace_in_file"]
    assert offered[Role.REVIEWER] == offered[Role.CHECKER] == ["read_file", "list_files"]
    below = [head async for head in journal.runs() if head.parent_run_id == result.run_id]
    assert [(head.graph, head.status) for head in below] == [("llm_loop", "ended")] * 4


async def test_what_a_model_is_asked_again_is_a_run_of_its_own(here: Path) -> None:
    said = script(here)
    planner = ScriptedLLM([DONE, *said[Role.PLANNER]])
    ralph = Ralph(
        PromptAgent(planner),
        PromptAgent(ScriptedLLM(said[Role.EXECUTOR])),
        PromptAgent(ScriptedLLM(said[Role.REVIEWER])),
        observers=(),
    )
    result = await ralph.run("Say hello")
    assert result.outcome is Outcome.COMPLETED
    again = planner.requests[1].messages[1].text
    assert "Your last answer could not be used: it says completed, and there is no task in tasks.md" in again


async def test_a_session_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    agent = PromptAgent(ScriptedLLM([DONE]), folder=tmp_path / "work")
    ralph = Ralph(agent, agent, agent, root=tmp_path / "sessions", observers=())
    result = await ralph.run("x")
    assert result.outcome is Outcome.FAILED
    assert "is outside of" in str(result.error)
    with pytest.raises(ConfigError, match=r"the folder .* does not exist"):
        Ralph(*[PromptAgent(ScriptedLLM([]), folder=tmp_path / "gone")] * 3, observers=())
