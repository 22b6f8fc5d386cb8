"""Claude Code, Codex, Gemini CLI and OpenCode, the real programs, as agents of the ralph loop.

npm installs more than a gigabyte for them, so no test of them is in `make test`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator import MemoryJournal, Runtime
from orchestrator.machines.ralph.contract import AgentFailed, Role
from orchestrator.machines.ralph.model import RoleCall
from orchestrator.ralph import AgentRequest, Ralph
from tests.providers.loopback import SILENCE, Reply, json_reply
from tests.providers.wire import Said
from tests.runtime.coding_stage import PROGRAMS, coding_stage

pytestmark = [pytest.mark.campaign]
every_program = pytest.mark.parametrize("name", PROGRAMS)
DONE = json.dumps({"status": "completed"})
QUALIFIED = json.dumps({"status": "completed", "verdict": "Qualified"})
TASKS = "# Tasks\n\n## Implementation Tasks\n\n- task-1: Say hello\n"
OTHERS = f"""
from pathlib import Path


def plan(request):
    (Path(request.input["SESSION_PATH"]) / "tasks.md").write_text({TASKS!r})
    return {{"status": "completed"}}


def review(request):
    verdict = "Qualified" if "-r2" in request.input["REPORT_PATH"] else "Failed"
    return {{"status": "completed", "verdict": verdict, "feedback": "it has no test"}}
"""
REPORT = "# Task Report\n\n## PART 1: IMPLEMENTATION REPORT\n\nIt says hello.\n"


def planner(project: Path, **more: Any) -> AgentRequest:
    session = project / "session"
    session.mkdir(exist_ok=True)
    given = {"SESSION_PATH": str(session), "MODE": "INITIALIZE", "USER_REQUEST": "Say hello", "CONTEXT": {}}
    return AgentRequest(role=Role.PLANNER, input=given, key="k", run_id="r", **more)


@every_program
async def test_a_whole_run_plans_writes_and_reviews(name: str, tmp_path: Path) -> None:
    write = PROGRAMS[name].write
    project, session = tmp_path / "project", tmp_path / "project" / "s" / "one"
    session.mkdir(parents=True)
    script: dict[str, list[Said | Reply]] = {
        "planner": [write(session / "tasks.md", TASKS), DONE],
        "executor": [
            write(project / "hello.txt", "hello\n"),
            write(session / "tasks.task-1-report.md", REPORT),
            json.dumps({"status": "completed", "success_criteria_met": True}),
        ],
        "reviewer": [QUALIFIED],
    }
    journal = MemoryJournal()
    with coding_stage(script, tmp_path) as (stage, model):
        coder = stage.agent(name)
        ralph = Ralph(coder, coder, coder, root=project / "s", runtime=Runtime(journal=journal, observers=()))
        result = await ralph.run("Say hello", session=session)
    assert result.outcome == "completed", result.error
    assert (project / "hello.txt").read_text() == "hello\n"
    assert [(task.id, task.marker) for task in result.tasks] == [("task-1", "x")]
    assert dict(model.requests) == {"planner": 2, "executor": 3, "reviewer": 1}
    noted = [record.body for record in await journal.load(result.run_id) if record.kind == "coding_agent"]
    assert [one["agent"] for one in noted] == [name] * 3
    assert all(one["session"] and one["usage"]["output_tokens"] >= 7 for one in noted)
    assert [(one.session, one.usage.short()) for one in result.agent_calls] == [
        (one["session"], one["usage"]) for one in noted
    ]
    # the stated tokens of the model server, each of 20 and 7, whatever the program makes of its cache
    assert (result.usage.input_tokens, result.usage.output_tokens) == (6 * 20, 6 * 7)
    assert (result.usage.cost is None) is (name != "claude"), "the others report no cost"


@every_program
async def test_a_session_that_this_machine_does_not_have_is_replaced_by_one_in_which_it_is_asked_again(
    name: str, tmp_path: Path
) -> None:
    unknown = "ses_none" if name == "opencode" else "019ab0c4-7a4e-7f00-8000-3d6f0ad1c2aa"
    last = RoleCall(role=Role.PLANNER, agent=name, session=unknown)
    with coding_stage({"planner": ["I am done.", DONE]}, tmp_path) as (stage, model):
        coder = stage.agent(name)
        asked = planner(stage.project, previous=last)
        assert await coder(asked) == "I am done."
        assert model.requests["planner"] == 1
        (call,) = asked.calls
        assert call.session not in {None, unknown}
        again = planner(stage.project, again=1, fault="the answer is not JSON", previous=call)
        assert await coder(again) == DONE
    first, second = model.bodies["planner"]
    assert "I am done." not in first
    assert "I am done." in second  # the program sent what was said before
    assert "the answer is not JSON" in second


@every_program
def test_a_resumed_run_continues_the_session_of_a_run_that_was_killed(name: str, tmp_path: Path) -> None:
    project, session = tmp_path / "project", tmp_path / "project" / "s" / "one"
    session.mkdir(parents=True)
    write = PROGRAMS[name].write
    script: dict[str, list[Said | Reply]] = {
        "executor": [
            *(write(session / "tasks.task-1-report.md", REPORT), DONE, SILENCE),
            *(write(session / "tasks.task-1-report-r2.md", REPORT), DONE),
        ]
    }
    (project / "others.py").write_text(OTHERS)
    with coding_stage(script, tmp_path) as (stage, model):
        given = {"agent": name, **PROGRAMS[name].options(stage.server.url, stage.home)}
        members = {key: value for key, value in given.items() if key != "environment"}
        members["env"] = [*given["environment"]]
        (project / "ralph.toml").write_text(
            '[agents.planner]\npython = "others:plan"\n[agents.reviewer]\npython = "others:review"\n[agents.executor]\n'
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in members.items())
        )
        environment = {**os.environ, **stage.environment(name)}
        command = [sys.executable, "-m", "orchestrator", "ralph"]
        first = ("run", "Say hello", "--session", "s/one", "--sessions", "s", "--trust")
        with subprocess.Popen([*command, *first], cwd=project, env=environment) as running:
            while model.requests["executor"] < 3 and running.poll() is None:
                time.sleep(0.05)
            running.kill()
        assert model.requests["executor"] == 3
        subprocess.run([*command, "resume", "one", "--trust"], cwd=project, env=environment, check=True)
    told = ["It says hello." in body for body in model.bodies["executor"]]
    assert told == [False, True, True, True, True]


@every_program
async def test_an_error_of_the_model_is_the_error_of_the_agent(name: str, tmp_path: Path) -> None:
    problem = {"type": "invalid_request_error", "message": "the model said no", "code": 400}
    refusal = json_reply({"type": "error", "error": problem}, 400)
    said = pytest.raises(AgentFailed, match=f"planner.*{name} failed: .*the model said no")
    with coding_stage({"planner": [refusal]}, tmp_path) as (stage, _), said as failed:
        await stage.agent(name)(planner(stage.project))
    assert not failed.value.retryable


@every_program
async def test_a_reviewer_cannot_write(name: str, tmp_path: Path) -> None:
    """Unless the host gives it everything."""
    written = tmp_path / "project" / "notes.txt"
    script: dict[str, list[Said | Reply]] = {"reviewer": [PROGRAMS[name].write(written, "mine"), QUALIFIED]}
    with coding_stage(script, tmp_path) as (stage, _):
        session = stage.project / "session"
        session.mkdir()
        given = {"SESSION_PATH": str(session), "TASK_ID": "task-1", "REPORT_PATH": "r.md", "CONTEXT": {}}
        request = AgentRequest(role=Role.REVIEWER, input=given, key="k", run_id="r")
        with suppress(AgentFailed):  # Gemini CLI and OpenCode end without an answer
            await stage.agent(name, permission="edit")(request)
    assert not written.exists()


def test_the_command_line_runs_real_agents_and_shows_their_sessions_and_their_usage(tmp_path: Path) -> None:
    project, session = tmp_path / "project", tmp_path / "project" / "s" / "one"
    session.mkdir(parents=True)
    write = PROGRAMS["claude"].write
    script: dict[str, list[Said | Reply]] = {
        "planner": [write(session / "tasks.md", TASKS), DONE],
        "executor": [write(session / "tasks.task-1-report.md", REPORT), DONE],
        "reviewer": [QUALIFIED],
    }
    roles = ("planner", "executor", "reviewer")
    (project / "ralph.toml").write_text("".join(f'[agents.{role}]\nagent = "claude"\n' for role in roles))
    with coding_stage(script, tmp_path) as (stage, _):
        environment = {**os.environ, **stage.environment("claude")}

        def typed(*words: str) -> str:
            command = [sys.executable, "-m", "orchestrator", *words]
            return subprocess.run(
                command, cwd=project, env=environment, check=True, capture_output=True, text=True
            ).stdout

        assert "usable" in typed("ralph", "doctor").splitlines()[0]
        said = typed("ralph", "run", "Say hello", "--session", "s/one", "--sessions", "s", "--trust")
        assert "3 agent calls, 100 tokens in, 35 out, cost" in said
        assert "outcome: completed" in said
        calls = json.loads(typed("runs", "show", "one", "--json"))["agent_calls"]
    assert [(one["role"], one["agent"]) for one in calls] == [(role, "claude") for role in roles]
    assert len({one["session"] for one in calls}) == 3
