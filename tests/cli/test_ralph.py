"""`orchestrator ralph`: whole runs with agents that are programs, in this process and as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.examples.ralph import AGENTS, REQUEST
from orchestrator.runtime.service import program
from tests.cli.test_terminal import Terminal

Cli = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]
Held = tuple[subprocess.Popen[str], Callable[[], object]]

PATH = [
    ("Initializing", "Planning", "session_resolved", None, 0),
    ("Planning", "Planning", "planner_completed", None, 0),
    ("Planning", "Executing", "planner_completed", None, 0),
    ("Executing", "Executing", "task_selected", "task-1", 1),
    ("Executing", "Reviewing", "executor_completed", "task-1", 1),
    ("Reviewing", "Executing", "reviewer_completed", "task-1", 1),
    ("Executing", "Executing", "task_selected", "task-1", 2),
    ("Executing", "Reviewing", "executor_completed", "task-1", 2),
    ("Reviewing", "Executing", "reviewer_completed", "task-1", 2),
    ("Executing", "Executing", "task_selected", "task-2", 1),
    ("Executing", "Reviewing", "executor_completed", "task-2", 1),
    ("Reviewing", "Executing", "reviewer_completed", "task-2", 1),
    ("Executing", "Executing", "task_selected", "task-3", 1),
    ("Executing", "Reviewing", "executor_completed", "task-3", 1),
    ("Reviewing", "Executing", "reviewer_completed", "task-3", 1),
    ("Executing", "Complete", "no_tasks_remaining", None, 0),
    ("Complete", "Planning", "holistic_check_failed", None, 0),
    ("Planning", "Executing", "planner_completed", None, 0),
    ("Executing", "Executing", "task_selected", "task-4", 1),
    ("Executing", "Reviewing", "executor_completed", "task-4", 1),
    ("Reviewing", "Executing", "reviewer_completed", "task-4", 1),
    ("Executing", "Complete", "no_tasks_remaining", None, 0),
    ("Complete", "Done", "holistic_check_passed", None, 0),
]
"""The whole run of the example: (from, to, trigger, task, attempt)."""

MADE = [
    "plan.md",
    "plan.questions.md",
    "progress.md",
    "progress.review1.md",
    "progress.review2.md",
    "tasks.md",
    "tasks.task-1-report-r2.md",
    "tasks.task-1-report.md",
    "tasks.task-2-report.md",
    "tasks.task-3-report.md",
    "tasks.task-4-report.md",
    "transitions.jsonl",
]

# Where there is a pipe hang-ROLE, its first call says there who it is, and hangs until somebody writes into the pipe
# go-ROLE, if that is there. Else it is the example's agent.
HANGING = """
import os, runpy, sys, threading
name = sys.argv[1]
if os.path.exists(f"hang-{name}"):
    pipe = open(f"hang-{name}", "w")
    os.unlink(f"hang-{name}")
    pipe.write(str(os.getpid()))
    pipe.close()
    if os.path.exists(f"go-{name}"):
        open(f"go-{name}").read()
    else:
        threading.Event().wait(600)
runpy.run_path(os.path.join(sys.argv[2], f"{name}.py"), run_name="__main__")
"""


def session(folder: Path) -> Path:
    (found,) = (folder / ".ralph-sessions").iterdir()
    return found


def walked(folder: Path) -> list[tuple[Any, ...]]:
    lines = (session(folder) / "transitions.jsonl").read_text(encoding="utf-8").splitlines()
    return [tuple(json.loads(line)["transition"].values()) for line in lines]


def end_of(folder: Path) -> dict[str, bytes]:
    """What a whole run leaves behind, without what is named after its time."""
    files = [
        file for file in session(folder).iterdir() if file.name in MADE and file.name != "transitions.jsonl"
    ]
    made = {file.name: file.read_bytes().replace(session(folder).name.encode(), b"SESSION") for file in files}
    return made | {file.name: file.read_bytes() for file in folder.glob("*temperature.py")}


def agents(folder: Path, **scripts: str) -> str:
    """Write a file of agents: the example's, those that `scripts` name in their place; return its name."""
    text = ""
    for role in ("planner", "questioner", "executor", "reviewer", "checker"):
        (folder / f"{role}_agent.py").write_text(scripts.get(role, ""))
        words = ["{python}", f"{{folder}}/{role}_agent.py"]
        if role not in scripts:
            words = ["{python}", "{folder}/hanging.py", role, str(AGENTS.parent)]
        text += f"[agents.{role}]\ncommand = {json.dumps(words)}\ntimeout = 60\nenv = ['*']\n"
    (folder / "hanging.py").write_text(HANGING)
    (folder / "ralph.toml").write_text(text)
    return "ralph.toml"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The example, run by nobody who disturbs it: its folder, and what it said."""
    folder = tmp_path_factory.mktemp("whole")
    root = Path(__file__).parents[2]
    roots = os.pathsep.join(str(root / one) for one in ("", "callbacks", "guards"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "orchestrator", "ralph", "run", "--example"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        check=False,
    )
    return folder, done


@pytest.fixture
def whole(example: tuple[Path, subprocess.CompletedProcess[str]]) -> dict[str, bytes]:
    """What the example leaves behind that nobody disturbs."""
    return end_of(example[0])


# ---- whole runs ----


@pytest.mark.campaign
def test_a_whole_run_plans_asks_reworks_finds_a_task_and_checks_twice(
    example: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = example
    assert (done.returncode, done.stderr) == (0, "")
    said = "4 of 4 tasks done; executions 5, rework 1, rounds of questions 1, new plans 1"
    assert said in done.stdout
    assert "outcome: completed" in done.stdout
    assert walked(folder) == PATH
    made = sorted(file.name for file in session(folder).iterdir())
    assert made == sorted([*MADE, f"{session(folder).name}.instructions.md"])
    tests = subprocess.run(
        [sys.executable, "-m", "unittest", "test_temperature"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tests.returncode == 0
    assert "Ran 4 tests" in tests.stderr
    first = (session(folder) / "tasks.task-1-report.md").read_text(encoding="utf-8")
    assert first.index("## PART 1") < first.index("## PART 2") < first.index("**Status**: Failed")


@pytest.mark.parametrize("role", ["planner", "questioner", "executor", "reviewer", "checker"])
def test_a_run_that_is_killed_while_an_agent_works_goes_on_to_the_same_end(
    folder: Path, start: Start, cli: Cli, whole: dict[str, bytes], role: str
) -> None:
    agents(folder)
    (folder / "answers.json").write_text('{"*": "two"}')
    os.mkfifo(folder / f"hang-{role}")
    running = start("ralph", "run", REQUEST, "--answers", "answers.json")
    agent = int((folder / f"hang-{role}").read_text())  # returns when the agent is there
    running.send_signal(signal.SIGKILL)
    running.wait()
    if not program.can_find():
        os.kill(agent, signal.SIGKILL)
    done = cli("ralph", "resume", session(folder).name, "--answers", "answers.json")
    assert done.code == 0, done.err
    assert walked(folder) == PATH
    assert end_of(folder) == whole


def test_a_program_on_another_host_is_a_question_and_nothing_is_repeated_before_the_answer(
    folder: Path, start: Start, cli: Cli, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    agents(folder)
    (folder / "answers.json").write_text('{"*": "two"}')
    os.mkfifo(folder / "hang-executor")
    running = start("ralph", "run", REQUEST, "--answers", "answers.json")
    agent = int((folder / "hang-executor").read_text())
    running.send_signal(signal.SIGKILL)
    running.wait()
    here, name = program.host_name(), session(folder).name
    monkeypatch.setattr(program, "host_name", lambda: "elsewhere")
    before = len(walked(folder))
    for said in ("    parked in Executing: unknown_effect\n", ""):
        refused = cli("ralph", "resume", name, "--answers", "answers.json")
        assert (refused.code, refused.out) == (2, said)
        assert f"was started on host {here!r} and may still run there" in refused.err
        assert "resume with again=True (`--again`)" in refused.err
    assert len(walked(folder)) == before
    assert "parked (unknown_effect)" in cli("runs", "show", name).out
    assert f"orchestrator ralph resume {name} --again" in cli("runs", "show", name).out
    status = json.loads(cli("ralph", "status", "--json").out)
    assert (status["status"], status["next_action"]) == (
        "blocked",
        "end its programs on other hosts, then resume with --again",
    )
    os.kill(agent, signal.SIGKILL)  # a person looks there and ends it
    done = cli("ralph", "resume", name, "--answers", "answers.json", "--again")
    assert done.code == 0, done.err
    assert (walked(folder), end_of(folder)) == (PATH, whole)


# ---- people ----


@pytest.mark.campaign
def test_questions_that_nobody_can_answer_here_are_answered_elsewhere(
    folder: Path, cli: Cli, whole: dict[str, bytes]
) -> None:
    agents(folder)
    done = cli("ralph", "run", REQUEST)
    run_id = session(folder).name
    assert done.code == 1
    assert f"orchestrator ralph answer {run_id} 1.1 TEXT" in done.out
    assert (
        done.err
        == f"orchestrator: 1 question waits for a person; then `orchestrator ralph resume {run_id}`\n"
    )
    shown = json.loads(cli("ralph", "status", "--json").out)
    assert (shown["status"], shown["next_action"]) == ("blocked", "answer its questions")
    assert shown["questions"] == [
        {"id": "1.1", "text": "To how many decimals are results rounded?", "category": "Requirements"}
    ]
    again = cli("ralph", "run", "--session", str(session(folder)))
    assert again.code == 2
    assert f"run {run_id} of this session has not ended: `orchestrator ralph resume {run_id}`" in again.err
    wrong = cli("ralph", "answer", run_id, "1.9", "two")
    assert (wrong.code, wrong.err) == (2, "orchestrator: '1.9' is no question; waiting: 1.1\n")
    assert cli("ralph", "answer", run_id).out == "1.1  To how many decimals are results rounded?  (waits)\n"
    for _ in range(2):  # the same answer of the same person may be repeated
        assert cli("ralph", "answer", run_id, "1.1", "two", "--by", "a person").out == "1.1  two\n"
    for late in (cli("ralph", "answer", run_id, "1.1", "three"), cli("ralph", "answer", run_id)):
        assert (late.out, late.err) in {
            ("", "orchestrator: '1.1' is answered already; waiting: none\n"),
            ("no question waits\n", ""),
        }
    assert cli("ralph", "resume", run_id).code == 0
    assert walked(folder) == PATH
    assert end_of(folder) == whole
    assert cli("ralph", "answer").out == "no question waits\n"
    again = cli("ralph", "answer", run_id, "1.1", "three")
    assert (again.code, again.err) == (2, "orchestrator: '1.1' is answered already; waiting: none\n")


def test_on_a_terminal_tasks_move_in_a_table_and_questions_are_typed(
    folder: Path, start: Start, whole: dict[str, bytes]
) -> None:
    agents(folder)
    for name in ("hang-reviewer", "go-reviewer", "hang-checker", "go-checker"):
        os.mkfifo(folder / name)
    terminal = Terminal(start, "ralph", "run", REQUEST)
    terminal.until("or nothing to leave it open:")
    os.write(terminal.ours, b"two\n")
    (folder / "hang-reviewer").read_text()  # returns when the first task is under review
    terminal.until("[P]")
    (folder / "go-reviewer").write_text("")
    (folder / "hang-checker").read_text()  # returns when the first tasks are done
    terminal.until("3 of 3 tasks done")
    (folder / "go-checker").write_text("")
    assert terminal.end() == (0, "")
    shown = terminal.text
    assert "1.1 (Requirements) To how many decimals are results rounded?" in shown
    assert "0 of 2 tasks done" in shown
    assert "[P]  task-1" in shown
    final = shown[shown.rindex("reports") :]
    assert "[x]  task-1  Convert Celsius to Fahrenheit" in final
    assert "4 of 4 tasks done" in final
    assert "━" in final
    assert "outcome: completed" in final
    answer = (session(folder) / "plan.questions.md").read_text(encoding="utf-8")
    assert "**Answer**: two\n" in answer
    assert set(end_of(folder)) == set(whole)


def test_answers_come_from_files_of_three_kinds(folder: Path, cli: Cli) -> None:
    from orchestrator.cli.ralph.answer import read_answers

    for name, text in {
        "a.json": '{"1.1": "two"}',
        "a.toml": '"1.1" = "two"\n',
        "a.txt": "# mine\n\n1.1: two\n",
    }.items():
        (folder / name).write_text(text)
        assert read_answers(folder / name) == {"1.1": "two"}
    ahead = {"12.1": "a", "technical:2.10": "b", "1.1+": "c", "*": "d"}
    (folder / "ahead.json").write_text(json.dumps(ahead))
    assert read_answers(folder / "ahead.json") == ahead
    agents(folder)
    for name, text, why in (
        ("b.txt", "1.1 two\n", "b.txt:1 is no answer; `1.1: the answer` would be one"),
        ("c.txt", "1.1: two\n1.1: three\n", "c.txt:2 answers 1.1 a second time"),
        ("b.json", "[1]", "b.json holds no answers"),
        ("b.toml", "1.1 two", "b.toml cannot be read"),
        ("d.txt", "1.1: two\nshell: bash\n", "d.txt answers 'shell', which no question can be named: 1.1 is"),
        ("d.json", '{"1,1": "two"}', "d.json answers '1,1', which no question can be named"),
        ("d.toml", "[1]\n1 = 'two'\n", "d.toml holds no answers"),
        ("e.toml", "'style:1.1' = 'two'\n", "e.toml answers 'style:1.1', which no question can be named"),
    ):
        (folder / name).write_text(text)
        done = cli("ralph", "run", "x", "--answers", name)
        assert (done.code, why in done.err) == (2, True)
    assert not (folder / ".ralph-sessions").exists()


@pytest.fixture
def held(folder: Path, start: Start) -> Held:
    """A run whose reviewer waits, and what lets it go on."""
    heard = "import json, sys; open('heard', 'a').write(json.dumps(json.load(sys.stdin)['notes']))"
    agents(folder, checker=f"{heard}; print('{{\"passed\": true}}')")
    (folder / "answers.txt").write_text("*: two\n")
    for name in ("hang-reviewer", "go-reviewer"):
        os.mkfifo(folder / name)
    running = start("ralph", "run", REQUEST, "--answers", "answers.txt")
    (folder / "hang-reviewer").read_text()
    return running, lambda: (folder / "go-reviewer").write_text("")


def test_what_a_run_is_told_from_another_terminal_all_agents_know_from_then_on(
    folder: Path, cli: Cli, held: Held
) -> None:
    running, release = held
    run_id = session(folder).name
    told = cli("ralph", "tell", str(session(folder)), "temperatures are in degrees", "--by", "Ada")
    assert told.out == f"run {run_id} was told: all agents called from its next boundary on know it\n"
    assert json.loads(cli("ralph", "status", "--json").out)["current_state"] == "Reviewing"
    release()
    _, err = running.communicate(timeout=90)
    assert (running.returncode, err) == (0, "")
    assert (folder / "heard").read_text() == '["temperatures are in degrees"]'
    late = cli("ralph", "tell", run_id, "too late")
    assert late.code == 2
    assert f"run {run_id} has ended" in late.err
    assert cli("ralph", "tell", run_id, " ").err == "orchestrator: there is nothing to tell: give a text\n"


def test_a_run_that_is_told_to_stop_does_so_after_what_is_in_flight(
    folder: Path, cli: Cli, held: Held
) -> None:
    running, release = held
    assert cli("ralph", "tell", session(folder).name, "enough for today", "--stop").code == 0
    release()
    _, err = running.communicate(timeout=90)
    assert running.returncode == 6
    assert "the run ended as cancelled (caller)" in err
    assert walked(folder)[-1][1] == "Failed"
    report = (session(folder) / "tasks.task-1-report.md").read_text(encoding="utf-8")
    assert "## PART 2: REVIEW REPORT" in report  # the review that was in flight counts
    assert "- [ ] task-1" in (session(folder) / "progress.md").read_text(encoding="utf-8")


def test_ctrl_c_ends_the_run_and_its_session_goes_on_later(
    folder: Path, start: Start, cli: Cli, whole: dict[str, bytes]
) -> None:
    agents(folder)
    (folder / "answers.toml").write_text('"1.1" = "two"\n')
    os.mkfifo(folder / "hang-executor")
    running = start("ralph", "run", REQUEST, "--answers", "answers.toml")
    (folder / "hang-executor").read_text()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 6
    assert err.startswith("orchestrator: the run ended as cancelled (caller)")
    again = f"`orchestrator ralph run --session {session(folder)}` continues its session\n"
    assert err.endswith(again)
    assert "- [/] task-1" in (session(folder) / "progress.md").read_text(encoding="utf-8")
    done = cli("ralph", "run", "--session", str(session(folder)), "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["run_id"], result["executions"]) == (f"{session(folder).name}-2", 5)
    assert result["transitions"][-1]["to_state"] == "Done"
    assert end_of(folder) == whole
