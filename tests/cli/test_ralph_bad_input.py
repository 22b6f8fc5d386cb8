"""What agents, people and files can do wrong in a ralph loop: a sentence says it, and nothing is written over."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from shlex import quote, split
from typing import Any

import pytest

from orchestrator.examples.ralph import AGENTS, REQUEST
from tests.cli.test_ralph import agents, session

Cli = Callable[..., Any]

PLANS = """
import json, pathlib, sys
request = json.load(sys.stdin)
folder = pathlib.Path(request["SESSION_PATH"])
(folder / "tasks.md").write_text({tasks!r})
print(json.dumps({{"status": "completed"}}))
"""
GOOD = PLANS.format(tasks="# Tasks\n\n- task-1: Convert Celsius to Fahrenheit\n")
REPORTS = """
import json, pathlib, sys
request = json.load(sys.stdin)
folder = pathlib.Path(request["SESSION_PATH"])
{work}
print(json.dumps({{"status": "completed", "report_path": "x", "success_criteria_met": True}}))
"""


def kept(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in session(folder).iterdir() if file.suffix == ".md"}


def failed(cli: Cli, *arguments: str) -> str:
    """Run to a failure with exit code 1; return its sentence."""
    done = cli("ralph", "run", REQUEST, *arguments)
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert "Traceback" not in done.out + done.err
    assert line.startswith("orchestrator: the run ended as failed (")
    assert "orchestrator ralph run --session" in line
    return str(line)


SAYS_GARBAGE = "import sys; sys.stdin.read(); sys.stdout.buffer.write(bytes(range(256)))"
ENDS_BADLY = "import sys; sys.stdin.read(); print('half', end=''); sys.exit('no key for the model')"
HANGS = "import sys, threading; print('{}', flush=True); threading.Event().wait(600)"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (SAYS_GARBAGE, "the answer of the planner is invalid: the answer is not JSON: it starts with"),
        (ENDS_BADLY, "ended with exit code 1: no key for the model"),
        (HANGS, "took longer than 0.2 s and was killed"),
        ("print('[]')", "the answer of the planner is invalid"),
        (
            "import json; print(json.dumps({'status': 'completed'}))",
            "it says completed, and there is no task in tasks.md: `- [ ] task-1: what` is one (asked 3 times)",
        ),
        (
            PLANS.format(tasks="# T\n\n- [?] task-1: what\n"),
            "tasks.md:3: unknown marker [?]; allowed: [ ], [/], [P]",
        ),
        (
            PLANS.format(tasks="# T\n\n```\n- [ ] task-1: what\n"),
            "tasks.md:3: a code fence starts here and never ends",
        ),
        (PLANS.format(tasks="- [ ] task-1: a\n- [ ] task-1: b\n"), "tasks.md:2: task task-1 occurs twice"),
    ],
    ids=["garbage", "exit 1", "hangs", "a list", "no tasks", "unknown marker", "unclosed fence", "twice"],
)
def test_a_planner_that_is_of_no_use_fails_the_run_and_says_how(
    folder: Path, cli: Cli, script: str, why: str
) -> None:
    file = folder / agents(folder, planner=script)
    if script == HANGS:
        file.write_text(file.read_text().replace("timeout = 60", "timeout = 0.2", 1))
    assert why in failed(cli)
    assert "- [ ] plan-1" in kept(folder)["progress.md"].decode()


@pytest.mark.parametrize(
    ("work", "why"),
    [
        ("", "it says completed, and there is no report"),
        ("(folder / 'tasks.task-1-report.md').touch()", "it says completed, and there is no report"),
        (
            "(folder / 'progress.md').write_text('# mine\\n')\n(folder / 'tasks.task-1-report.md').write_text('x')",
            "progress.md was changed outside since it was read; nothing was written",
        ),
    ],
    ids=["no report", "an empty report", "progress.md written"],
)
def test_an_executor_without_a_report_or_with_other_peoples_files_fails_the_run(
    folder: Path, cli: Cli, work: str, why: str
) -> None:
    agents(folder, planner=GOOD, executor=REPORTS.format(work=work))
    assert why in failed(cli)
    progress = kept(folder)["progress.md"].decode()
    assert progress == "# mine\n" if "mine" in work else "- [/] task-1" in progress


def test_an_executor_that_writes_over_an_earlier_report_is_caught(folder: Path, cli: Cli) -> None:
    work = (
        "for name in ('tasks.task-1-report.md', f'tasks.task-1-report-r{request[\"ATTEMPT_NUMBER\"]}.md'):\n"
        "    (folder / name).write_text(f'attempt {request[\"ATTEMPT_NUMBER\"]}')"
    )
    agents(folder, planner=GOOD, executor=REPORTS.format(work=work))
    why = "tasks.task-1-report.md: was overwritten; a report may only be appended to"
    assert why in failed(cli)
    assert why in json.loads(cli("ralph", "status", "--json").out)["summary"]


def test_a_task_that_fails_three_times_fails_the_run_and_the_session_goes_on_from_there(
    folder: Path, cli: Cli
) -> None:
    refuses = 'print(\'{"status": "completed", "verdict": "Failed", "feedback": "no"}\')'
    name = "'tasks.task-1-report' + ('' if n == 1 else f'-r{n}') + '.md'"
    work = f"n = request['ATTEMPT_NUMBER']\n(folder / ({name})).write_text('done')"
    agents(folder, planner=GOOD, executor=REPORTS.format(work=work), reviewer=refuses)
    assert "task-1" in failed(cli)
    assert "- [F] task-1" in kept(folder)["progress.md"].decode()
    assert sorted(name for name in kept(folder) if "report" in name) == [
        "tasks.task-1-report-r2.md",
        "tasks.task-1-report-r3.md",
        "tasks.task-1-report.md",
    ]
    qualifies = 'print(\'{"status": "completed", "verdict": "Qualified"}\')'
    passes = "print('{\"passed\": true}')"
    agents(folder, planner=GOOD, executor=REPORTS.format(work=work), reviewer=qualifies, checker=passes)
    done = cli("ralph", "run", "--session", str(session(folder)))
    assert done.code == 0, done.err
    assert "tasks.task-1-report-r4.md" in kept(folder)


BLOCKED = """
import json, pathlib, sys
request = json.load(sys.stdin)
if request["CONTEXT"]["requirements"]:
    (pathlib.Path(request["SESSION_PATH"]) / "tasks.md").write_text("# Tasks\\n\\n- [x] task-1: what\\n")
    print(json.dumps({"status": "completed"}))
else:
    print(json.dumps({"status": "blocked", "blockers": ["which shell?"]}))
"""


def test_a_planner_that_is_blocked_says_what_it_lacks_and_how_to_say_it(folder: Path, cli: Cli) -> None:
    file = folder / agents(folder, planner=BLOCKED, checker="print('{\"passed\": true}')")
    done = cli("ralph", "run", REQUEST, "--agents", file.name)
    command = (
        f"orchestrator ralph run TEXT --session {quote(str(session(folder)))} --agents {quote(str(file))}"
    )
    assert done.code == 1
    assert done.err == (
        "orchestrator: the run ended as failed (planner_blocked): which shell?; "
        f"`{command}` continues its session, with the missing information as TEXT\n"
    )
    (instructions,) = session(folder).glob("*.instructions.md")
    instructions.write_text(
        instructions.read_text().replace("max_parallel_executors: 1", "max_parallel_executors: 4")
    )
    again = cli(*["bash" if word == "TEXT" else word for word in split(command)[1:]])
    assert again.code == 0
    assert again.err == (
        f"orchestrator: session {session(folder).name} sets max_parallel_executors 4, without effect: "
        "coding agents run one at a time\n"
    )


def test_variables_that_no_program_gets_are_named_once(
    folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "value-of-the-canary")
    file = folder / agents(folder, planner=BLOCKED)
    assert "CANARY_TOKEN" not in cli("ralph", "run", "x", "--agents", file.name).err
    file.write_text(file.read_text().replace("env = ['*']", "env = ['OTHER']"))
    err = cli("ralph", "run", "x", "--agents", file.name, "--trust").err
    assert err.count("CANARY_TOKEN") == 1
    assert "do not get" in err.splitlines()[0]
    assert 'env = ["NAME"] passes one' in err
    assert "value-of-the-canary" not in err


# ---- the command line ----


def test_what_cannot_be_run_is_said_before_anything_is_made(
    folder: Path, cli: Cli, one_sentence: Callable[[Any], str]
) -> None:
    (folder / "empty.toml").write_text("")
    (folder / "half.toml").write_text("[agents.planner]\ncommand = ['x']\n")
    (folder / "two.toml").write_text(
        "".join(
            f"[agents.{role}]\ncommand = ['x']\nmodel = 'm'\n" for role in ("planner", "executor", "reviewer")
        )
    )
    (folder / "none.toml").write_text(
        "".join(
            f"[agents.{role}]\npython = 'nowhere:{role}'\n" for role in ("planner", "executor", "reviewer")
        )
    )
    (folder / "bad.md").write_text("# Tasks\n- what\n")
    (folder / "doubtful.md").write_text("# Tasks\n- [ ] one\n- two\n- three\n")
    (folder / "good.md").write_text("# Tasks\n- [ ] task-1: what\n")
    good = str(AGENTS)
    for arguments, why in (
        ((), "no request: give a text, --session, --import or --example"),
        (("x",), "there is no file ralph.toml: name an agents file with --agents, or try --example"),
        (("x", "--agents", "empty.toml"), "empty.toml has no [agents.planner]"),
        (("x", "--agents", "half.toml"), "half.toml has no [agents.executor]"),
        (("x", "--agents", "two.toml"), "agents.planner takes one of python, command, agent, model, not 2"),
        (("x", "--agents", good, "--limit", "max_task_attempts=-1"), "max_task_attempts is -1"),
        (("x", "--agents", good, "--limit", "attempts=1"), "attempts"),
        (("--agents", good, "--session", "nowhere"), "nowhere: the session directory does not exist"),
        (
            ("--agents", good, "--import", "bad.md"),
            "bad.md: has no task: `- [ ] task-1: what` is one; line 2: 'what': ",
        ),
        (
            ("--agents", good, "--import", "doubtful.md"),
            "more was left out than imported; correct the list, or",
        ),
        (("--agents", good, "--import", "bad.md", "--session", "."), "give only one of them"),
        (("--agents", "none.toml", "--import", "good.md"), "there is no module 'nowhere'"),
    ):
        done = cli("ralph", "run", *arguments)
        assert done.code == 2, done
        assert why in one_sentence(done)
    assert not (folder / ".ralph-sessions").exists()
    assert not (folder / ".orchestrator").exists()


def test_a_session_that_cannot_be_read_is_refused_with_its_line_and_left_as_it_is(
    folder: Path, cli: Cli, one_sentence: Callable[[Any], str]
) -> None:
    agents(folder)
    made = folder / ".ralph-sessions" / "s"
    made.mkdir(parents=True)
    (made / "tasks.md").write_text("# Tasks\n\n- task-1: a\n")
    (made / "progress.md").write_text("# Progress\n\n- [done] task-1\n")
    for command in (("run", "--session"), ("tasks",)):
        said = one_sentence(cli("ralph", *command, str(made)))
        assert "progress.md:3: unknown marker [done]; allowed: [ ], [/], [P], [x], [F], [C]" in said
    assert sorted(file.name for file in made.iterdir()) == ["progress.md", "tasks.md"]


def test_commands_about_no_run_say_so(folder: Path, cli: Cli, one_sentence: Callable[[Any], str]) -> None:
    for command in ("status", "tasks", "answer"):
        assert "there is no journal" in one_sentence(cli("ralph", command))
    assert (
        cli("run", "hi", "--model", "python:models:answers", "--tool", "models:look", "--run-id", "loop").code
        == 0
    )
    for command in ("status", "resume", "answer"):
        assert "belongs to graph 'llm_loop', not of 'ralph': `orchestrator runs show loop" in one_sentence(
            cli("ralph", command, "loop")
        )
    assert "no run of the loop" in one_sentence(cli("ralph", "status"))


def test_a_list_of_tasks_is_shown_as_it_would_be_taken(folder: Path, cli: Cli) -> None:
    (folder / "fix_plan.md").write_text("# Fix\n\n- [x] Build it\n- [ ] Ship it\n")
    shown = json.loads(cli("ralph", "tasks", "fix_plan.md", "--json").out)
    assert [(task["id"], task["marker"], task["status"]) for task in shown] == [
        ("build-it", "x", "done"),
        ("ship-it", " ", "open"),
    ]
    assert "1 of 2 tasks done" in cli("ralph", "tasks", "fix_plan.md").out
    assert [file.name for file in folder.iterdir() if file.name != "models.py"] == ["fix_plan.md"]


def test_an_imported_list_is_executed_from_where_it_stands(folder: Path, cli: Cli) -> None:
    (folder / "fix_plan.md").write_text("# Fix\n\n- [x] task-1: Build it\n- [ ] task-2: Ship it\n")
    work = "(folder / f'tasks.{request[\"TASK_ID\"]}-report.md').write_text('done')"
    qualifies = 'print(\'{"status": "completed", "verdict": "Qualified"}\')'
    passes = "print('{\"passed\": true}')"
    agents(folder, planner="1/0", executor=REPORTS.format(work=work), reviewer=qualifies, checker=passes)
    done = cli("ralph", "run", "--import", "fix_plan.md", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert [(task["id"], task["marker"]) for task in result["tasks"]] == [("task-1", "x"), ("task-2", "x")]
    assert result["executions"] == 1
    assert (folder / "fix_plan.md").read_text() == "# Fix\n\n- [x] task-1: Build it\n- [ ] task-2: Ship it\n"


@pytest.mark.parametrize(
    ("typed", "more", "code"), [("n\n", (), 2), ("", (), 2), ("y\n", (), 0), ("", ("--yes",), 0)]
)
def test_a_person_is_asked_before_most_of_a_list_is_lost(
    folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, typed: str, more: tuple[str, ...], code: int
) -> None:
    monkeypatch.setattr("orchestrator.cli.keyboard.present", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    (folder / "plan.md").write_text("# Tasks\n\n- [x] task-1: Build it\n- Ship it\n- Tell them\n")
    agents(folder, planner="1/0", executor="1/0", reviewer="1/0", checker="print('{\"passed\": true}')")
    done = cli("ralph", "run", "--import", "plan.md", *more)
    assert done.code == code, done
    assert "plan.md: 1 tasks, 1 of them done; 2 left out" in done.out
    assert "left out, line 4: 'Ship it': it has neither a box nor an id" in done.out
    assert ("[y/N]" in done.out) is not bool(more)
    assert ("nothing was imported" in done.err) is (code == 2)
    assert (folder / ".ralph-sessions").exists() is (code == 0)
