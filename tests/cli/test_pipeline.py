"""`orchestrator pipeline`: run, report and resume, in this process and as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator import CheckpointManager, OrchestrationState, OrchestrationStateMachine
from orchestrator.cli.trust.signature import signed
from orchestrator.runtime.service.child_run import current_scope
from tests.cli.test_stop import until
from tests.ending import rest

Cli = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]

STAGES = '''
import threading
from pathlib import Path

from orchestrator.testing import ScriptedLLM


def plan(request):
    return {"for": request.spec, "told": [one.text for one in request.feedback]}


def valid(request):
    return []


def never_valid(request):
    return {"issues": [{"severity": "error", "message": "too short", "where": "all of it"}]}


def work(request):
    return f"draft {request.refinement} of {request.spec}"


def good(request):
    return {"score": 9, "comments": "fine", "tokens": 40}


def soft_then_good(request):
    return {"score": 9 if request.refinement else 6, "tokens": 10}


def good_in_the_end(request):
    return {"score": 9 if Path("enough").exists() else 6}


def raises(request):
    raise ValueError("no score today")


def hangs_once(request):
    """Hang in the first process that comes here; the next one finds the mark and goes on."""
    mark = Path(f"hung-{request.stage.value}")
    if not mark.exists():
        mark.touch()
        print("hangs", flush=True)
        threading.Event().wait(600)
    return {"planning": {"for": request.spec}, "validating": [], "implementing": "done",
            "judging": {"score": 9}}[request.stage.value]


class Spent:
    def is_exhausted(self):
        return True


def planner_model():
    return ScriptedLLM(['{"title": "a page"}'])


def judge_model():
    return ScriptedLLM(['{"score": 8.5, "comments": "good"}'])


number = 7
'''

SPEC = """
spec = "a page"

[stages.planner]
python = "stages:plan"

[stages.validator]
python = "stages:valid"

[stages.implementer]
python = "stages:work"

[stages.judge]
python = "stages:good"
"""


@pytest.fixture
def spec(folder: Path) -> Callable[..., str]:
    """Write a spec with some of its lines changed, and the stages it names; return its file's name."""
    (folder / "stages.py").write_text(STAGES)
    sys.modules.pop("stages", None)

    def written(*changes: tuple[str, str], more: str = "") -> str:
        text = SPEC
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / "spec.toml").write_text(text + more)
        return "spec.toml"

    return written


def states(out: str) -> list[str]:
    """The destinations of the lines that a run prints."""
    return re.findall(r"^  \w+ -> (\w+) ", out, re.MULTILINE)


WORK = ["planning", "validating", "implementing", "judging"]

# ---- run ----


def test_a_run_shows_its_states_its_output_and_its_metrics(cli: Cli, spec: Callable[..., str]) -> None:
    done = cli("pipeline", "run", spec(("stages:good", "stages:soft_then_good")), "--run-id", "r1")
    assert (done.code, done.err) == (0, "")
    assert states(done.out) == [*WORK, "implementing", "judging", "succeeded"]
    _, output, report, end = re.split(r"\n\n(?=draft|===|outcome)", done.out)
    assert output == "draft 1 of a page"
    assert report.startswith(
        "=== Orchestration Metrics Report ===\n\nFinal State: succeeded\nIterations: 1 / 3\n"
    )
    assert "Highest Token State: judging\n  Avg Tokens: 10\n  Total Tokens: 20\n  Visits: 2" in report
    assert end == "outcome: completed; again: orchestrator pipeline report r1\n"


def test_json_is_one_object_with_everything(cli: Cli, spec: Callable[..., str]) -> None:
    (line,) = cli("pipeline", "run", spec(), "--json").out.splitlines()
    result = json.loads(line)
    assert list(result) == [
        "run_id", "outcome", "reason", "state", "output", "best", "plan", "validation", "evaluation", "feedback",
        "iterations", "refinements", "tokens", "verdict", "error", "report", "transitions",
    ]  # fmt: skip
    assert (result["outcome"], result["state"], result["output"]) == (
        "completed",
        "succeeded",
        "draft 0 of a page",
    )
    assert result["plan"] == {"for": "a page", "told": []}
    assert result["best"]["score"] == 9
    assert (result["tokens"], result["report"]["total_tokens"]) == (40, 40)
    assert [one["to_state"] for one in result["report"]["history"]] == [*WORK, "succeeded"]
    assert [one["to_state"] for one in result["transitions"]] == [*WORK, "succeeded"]


ENDS = {
    "a limit": (
        ("stages:valid", "stages:never_valid"),
        1,
        r"failed \(max_iterations\): iterations: 3 of 3 used",
    ),
    "a judge that raises": (("stages:good", "stages:raises"), 1, r"failed \(stage_error\): no score today"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_run_that_fails_says_why_in_one_sentence(cli: Cli, spec: Callable[..., str], name: str) -> None:
    change, code, said = ENDS[name]
    done = cli("pipeline", "run", spec(change))
    assert done.code == code
    assert re.fullmatch(rf"orchestrator: the run ended as {said}.*\n", done.err)
    assert "Final State: failed" in done.out


def test_a_budget_of_the_hosts_own_and_a_limit_have_their_exit_code(
    cli: Cli, spec: Callable[..., str]
) -> None:
    done = cli(
        "pipeline", "run", spec(('spec = "a page"', 'spec = "a page"\nbudget = "stages:Spent"')), "--json"
    )
    assert (done.code, json.loads(done.out)["state"]) == (4, "budget_exhausted")
    done = cli("pipeline", "run", spec(("stages:valid", "stages:never_valid")), "--limit", "max_iterations=1")
    assert done.code == 1
    assert "iterations: 1 of 1 used" in done.err


def test_the_best_attempt_is_named_where_none_was_good_enough(cli: Cli, spec: Callable[..., str]) -> None:
    done = cli(
        "pipeline", "run", spec(("stages:good", "stages:soft_then_good"), more="[rubric]\napprove = 10\n")
    )
    assert (done.code, "the best attempt scored 9" in done.err) == (1, True)
    assert "draft" not in done.out


def test_the_output_goes_to_a_file(cli: Cli, spec: Callable[..., str], folder: Path) -> None:
    done = cli("pipeline", "run", spec(), "--output", "page.txt")
    assert (folder / "page.txt").read_text() == "draft 0 of a page"
    assert "draft" not in done.out


def test_requirements_come_from_a_file_beside_the_spec_or_from_the_command_line(
    cli: Cli, spec: Callable[..., str], folder: Path
) -> None:
    name = spec(('spec = "a page"', 'requirements = "wanted.toml"'))
    (folder / "wanted.toml").write_text('title = "one"')
    (folder / "other.json").write_text('["two"]')
    (folder / "text.md").write_text("three")
    found = [
        json.loads(cli("pipeline", "run", name, *more, "--json").out)["plan"]["for"]
        for more in ((), ("--requirements", "other.json"), ("--requirements", "text.md"))
    ]
    assert found == [{"title": "one"}, ["two"], "three"]


def test_a_model_may_be_the_stage(cli: Cli, spec: Callable[..., str]) -> None:
    name = spec(
        ('python = "stages:plan"', 'prompt = "Plan it."\nmodel = "python:stages:planner_model"'),
        ('python = "stages:good"', 'prompt = "Judge it."\nmodel = "python:stages:judge_model"'),
    )
    result = json.loads(cli("pipeline", "run", name, "--json").out)
    assert (result["outcome"], result["evaluation"]["score"]) == ("completed", 8.5)
    assert result["report"]["states"]["judging"]["total_tokens"] > 0


# ---- bad input ----

FAULTS: dict[str, tuple[str, str]] = {
    "not toml": ("stages = [", "spec.toml cannot be read: it is not TOML"),
    "nothing in it": ("", "does not say what is wanted"),
    "no stages": ('spec = "x"', "has no [stages.planner]"),
    "a stage is missing": (SPEC.replace("[stages.judge]", "[stages.judges]"), "has no [stages.judge]"),
    "a stage too many": (SPEC + '[stages.cook]\npython = "stages:plan"', "unknown stage 'cook'"),
    "a stage that is no table": (
        SPEC.replace("[stages.judge]\npython", "[stages]\njudge"),
        "stages.judge is a table",
    ),
    "an unknown key": (SPEC + "color = 1", "unknown setting stages.judge.color"),
    "an unknown limit": (SPEC + "[limits]\nmax_iteration = 1", "unknown setting limits.max_iteration"),
    "a bad limit": (SPEC + "[limits]\nmax_iterations = -1", "max_iterations"),
    "a bad rubric": (SPEC + "[rubric]\napprove = 1\nhard = 2", "hard <= approve"),
    "nobody does it": (SPEC.replace('python = "stages:good"', "timeout = 1"), "stages.judge takes one of"),
    "two do it": (SPEC + 'prompt = "Judge."', "stages.judge takes one of python, command and prompt, not 2"),
    "no such module": (SPEC.replace("stages:good", "nowhere:good"), "there is no module 'nowhere'"),
    "no such function": (SPEC.replace("stages:good", "stages:best"), "stages has no 'best'"),
    "no function": (
        SPEC.replace("stages:good", "stages:number"),
        "'stages:number' is a int, which cannot be called",
    ),
    "no model": (SPEC.replace('python = "stages:good"', 'prompt = "Judge."'), "no model"),
    "no data": (SPEC.replace('"a page"', "2026-01-01"), "is not plain data"),
    "said twice": ('requirements = "x.toml"\n' + SPEC, "`requirements` and `spec` say the same"),
    "no such file": (SPEC.replace('spec = "a page"', 'requirements = "x.toml"'), "x.toml: No such file"),
    "a strange effect": (SPEC + 'effect = "often"', "often"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_spec_that_cannot_work_is_one_sentence_and_nothing_is_started(
    cli: Cli, spec: Callable[..., str], folder: Path, one_sentence: Callable[[Any], str], name: str
) -> None:
    text, said = FAULTS[name]
    spec()
    (folder / "spec.toml").write_text(text)
    done = cli("pipeline", "run", "spec.toml")
    assert said in one_sentence(done)
    assert done.code == 2
    assert not (folder / ".orchestrator").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run",), "give a spec file, or --example"),
        (("run", "spec.toml", "--example"), "give a spec file, or --example"),
        (("run", "nowhere.toml"), "nowhere.toml: No such file"),
        (("run", "spec.toml", "--limit", "max_iterations"), "not of the form name=value"),
        (("run", "spec.toml", "--run-id", " "), "which no route or command line can name"),
        (("report",), "there is no journal"),
        (("resume", "r1"), "there is no journal"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    cli: Cli,
    spec: Callable[..., str],
    one_sentence: Callable[[Any], str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    spec()
    done = cli("pipeline", *arguments)
    assert said in one_sentence(done)
    assert done.code == 2


def test_a_known_run_id_is_refused_and_runs_of_other_kinds_are_named(
    cli: Cli, spec: Callable[..., str], one_sentence: Callable[[Any], str]
) -> None:
    name = spec()
    assert cli("pipeline", "run", name, "--run-id", "taken").code == 0
    assert "'taken' exists" in one_sentence(cli("pipeline", "run", name, "--run-id", "taken"))
    assert cli("run", "Hello.", "--model", "python:models:model", "--run-id", "talk").code == 0
    assert "run talk belongs to graph 'llm_loop'" in one_sentence(cli("pipeline", "report", "talk"))
    assert "`orchestrator runs resume talk`" in one_sentence(cli("pipeline", "resume", "talk"))
    assert "no run 'gone'" in one_sentence(cli("pipeline", "report", "gone"))


# ---- report ----


def test_the_report_from_the_journal_is_the_one_that_the_run_printed(
    cli: Cli, spec: Callable[..., str]
) -> None:
    done = cli("pipeline", "run", spec(("stages:good", "stages:soft_then_good")))
    printed = done.out[done.out.index("=== ") : done.out.index("\n\noutcome")]
    assert cli("pipeline", "report").out == printed + "\n"


def test_the_time_of_each_state_is_drawn_as_bars(
    cli: Cli, spec: Callable[..., str], one_sentence: Callable[[Any], str]
) -> None:
    assert cli("pipeline", "run", spec(("stages:good", "stages:soft_then_good")), "--run-id", "r1").code == 0
    plain = cli("pipeline", "report", "r1").out
    assert cli("pipeline", "report", "r1", "--plot", "time.svg") == (0, plain, "")
    text = Path("time.svg").read_text()
    assert re.search(r"<desc>.*\bjudging: [^;]+ · \d visits?", text, re.IGNORECASE), text
    assert "*.svg or *.png" in one_sentence(cli("pipeline", "report", "r1", "--plot", "time.txt"))


def test_the_report_as_json_has_the_figures_of_the_run(cli: Cli, spec: Callable[..., str]) -> None:
    run = json.loads(cli("pipeline", "run", spec(), "--limit", "max_iterations=7", "--json").out)
    report = json.loads(cli("pipeline", "report", run["run_id"][:8], "--json").out)
    assert report["run_id"] == run["run_id"]
    for name in (
        "final_state",
        "iterations",
        "max_iterations",
        "total_tokens",
        "state_visits",
        "transitions",
    ):
        assert report[name] == run["report"][name], name
    assert report["max_iterations"] == 7


def test_a_checkpoint_of_the_hosts_own_machine_has_a_report_too(cli: Cli, folder: Path) -> None:
    machine = OrchestrationStateMachine(observers=())
    machine.transition(OrchestrationState.PLANNING, duration_seconds=1.0, tokens_consumed=5)
    CheckpointManager(folder / "journal.db", "job-1").save_state_machine(machine)
    done = cli("pipeline", "report", "--journal", "journal.db")
    assert done.out == machine.format_metrics_report() + "\n"
    assert "job-1" in cli("runs", "list", "--journal", "journal.db").out
    assert "load_state_machine" in cli("pipeline", "resume", "job-1", "--journal", "journal.db").err
    machine.transition(OrchestrationState.FAILED, reason="max_iterations")
    CheckpointManager(folder / "journal.db", "job-1").save_state_machine(machine)
    shown = cli("runs", "show", "job-1", "--journal", "journal.db").out
    assert "ended: failed (max_iterations)" in shown
    assert cli("doctor", "--journal", "journal.db").code == 0


# ---- interrupted ----


def test_ctrl_c_does_not_wait_for_a_stage_that_blocks(start: Start, spec: Callable[..., str]) -> None:
    running = start("pipeline", "run", spec(("stages:good", "stages:hangs_once")))
    until(running, "hangs")
    running.send_signal(signal.SIGINT)
    out, _ = rest(running)
    assert (running.returncode, states(out)[-1]) == (6, "failed")
    assert "outcome: cancelled (caller)" in out


def test_a_reader_that_goes_away_cancels_the_run(start: Start, cli: Cli, spec: Callable[..., str]) -> None:
    name = spec(("stages:good", "stages:good_in_the_end"), more="[limits]\nmax_refinements = 0\n")
    running = start("pipeline", "run", name, "--run-id", "r1")
    until(running, "-> judging")
    assert running.stdout is not None
    running.stdout.close()
    assert running.wait(timeout=60) == 141
    assert "ended: cancelled (caller)" in cli("runs", "show", "r1").out


@pytest.mark.parametrize("stage", ["planner", "validator", "implementer", "judge"])
def test_a_killed_run_goes_on_in_the_stage_it_was_in(
    start: Start, cli: Cli, spec: Callable[..., str], folder: Path, stage: str
) -> None:
    was = {"planner": "plan", "validator": "valid", "implementer": "work", "judge": "good"}[stage]
    state = {
        "planner": "planning",
        "validator": "validating",
        "implementer": "implementing",
        "judge": "judging",
    }
    name = spec((f"stages:{was}", "stages:hangs_once"))
    running = start("pipeline", "run", name, "--run-id", "r1")
    until(running, "hangs")
    running.kill()
    running.wait()
    (folder / name).unlink()  # what the run needs is kept with it

    assert "orchestrator pipeline resume r1" in cli("runs", "show", "r1").out
    assert "`orchestrator pipeline resume r1` resumes it" in cli("runs", "resume", "r1").err
    done = cli("pipeline", "resume", "r1")
    assert (done.code, done.err) == (0, "")
    before = WORK.index(state[stage]) + 1
    assert states(done.out) == [*WORK[before:], "succeeded"]
    report = json.loads(cli("pipeline", "report", "r1", "--json").out)
    assert [one["to_state"] for one in report["history"]] == [*WORK, "succeeded"]
    again = cli("pipeline", "resume", "r1", "--json")
    assert (again.code, json.loads(again.out)["outcome"]) == (0, "completed")


def test_ctrl_c_cancels_the_run_and_the_program_of_its_stage(
    start: Start, spec: Callable[..., str], folder: Path
) -> None:
    os.mkfifo(folder / "alive")
    held = "alive = open('alive', 'w'); print('here', file=alive, flush=True)"
    script = f"import threading; {held}; threading.Event().wait()"
    running = start(
        "pipeline",
        "run",
        spec(('python = "stages:good"', f'command = ["{{python}}", "-c", "{script}"]\nenv = ["*"]')),
    )
    with (folder / "alive").open() as said:
        assert said.readline() == "here\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
        assert said.read() == ""  # the other end is closed: the program is dead
    assert (running.returncode, states(out)[-1]) == (6, "failed")
    assert err.startswith("orchestrator: the run ended as cancelled (caller)")


def test_a_run_goes_on_from_any_folder_in_the_one_it_was_started_in(
    start: Start, cli: Cli, spec: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "elsewhere").mkdir()
    journal = ("--journal", "elsewhere/.orchestrator/journal.db")
    running = start("pipeline", "run", spec(("stages:good", "stages:hangs_once")), "--run-id", "r1", *journal)
    until(running, "hangs")
    running.kill()
    running.wait()
    monkeypatch.chdir(folder / "elsewhere")
    done = cli("pipeline", "resume", "r1", "--output", "page.txt", "--limit", "max_iterations=9")
    assert (done.code, done.err) == (0, "")
    assert "Iterations: 1 / 9" in done.out
    assert (folder / "elsewhere" / "page.txt").read_text() == "draft 0 of a page"


def left_open(folder: Path, **launch: Any) -> None:
    """A run that a program of the host's left in judging."""
    from orchestrator import SqliteJournal
    from orchestrator.pipeline import Pipeline

    async def leave() -> None:
        judging = asyncio.Event()

        async def judge(_: Any) -> None:
            judging.set()
            await asyncio.Event().wait()

        async with SqliteJournal(folder / "journal.db") as journal:
            stages: Any = (lambda request: "p", lambda request: [], lambda request: "w", judge)
            pipeline = Pipeline(*stages, journal=journal, observers=(), **launch)
            running = asyncio.create_task(pipeline.run("a page", run_id="r1"))
            await judging.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(leave())


def test_a_run_of_the_hosts_own_program_goes_on_with_the_stages_of_a_spec(
    cli: Cli, spec: Callable[..., str], folder: Path, one_sentence: Callable[[Any], str]
) -> None:
    left_open(folder)
    journal = ("--journal", "journal.db")
    said = one_sentence(cli("pipeline", "resume", "r1", *journal))
    assert "its stages are not known: give --spec SPEC.toml" in said
    done = cli("pipeline", "resume", "r1", *journal, "--spec", spec())
    assert (done.code, states(done.out)) == (0, ["succeeded"])
    assert "\n\nw\n\n" in done.out


def test_a_run_whose_folder_is_gone_stays_where_it_is(
    cli: Cli, spec: Callable[..., str], folder: Path, one_sentence: Callable[[Any], str]
) -> None:
    spec()
    left_open(folder, launch=signed({"cwd": str(folder / "gone"), "pipeline": {}}))
    done = cli("pipeline", "resume", "r1", "--journal", "journal.db", "--spec", "spec.toml")
    assert "gone that the run was started in is gone" in one_sentence(done)
    assert cli("runs", "show", "r1", "--journal", "journal.db").out.count("judging") > 0


def test_a_paused_run_goes_on_where_it_lives(
    start: Start, cli: Cli, spec: Callable[..., str], folder: Path, one_sentence: Callable[[Any], str]
) -> None:
    name = spec(("stages:good", "stages:good_in_the_end"), more="[limits]\nmax_refinements = 0\n")
    running = start("pipeline", "run", name, "--run-id", "r1")
    until(running, "-> validating")
    assert "held by" in one_sentence(cli("pipeline", "resume", "r1"))
    assert cli("runs", "pause", "r1").code == 0
    until(running, "paused")
    (folder / "enough").touch()
    assert cli("pipeline", "resume", "r1").code == 0
    out, err = rest(running)
    assert (running.returncode, err) == (0, "")
    assert states(out)[-1] == "succeeded"


# ---- the example ----


def test_the_bundled_example_writes_a_module_that_does_what_was_asked(process: Cli, folder: Path) -> None:
    done = process("pipeline", "run", "--example", "--output", "text_tools.py")
    assert (done.code, done.err) == (0, "")
    assert states(done.out) == [*WORK[:2], *WORK, "implementing", "judging", "succeeded"]
    assert "Iterations: 2 / 3" in done.out
    asked = (
        "import text_tools as t; "
        "print(t.slug('A Tale, of Two'), t.initials('alan m turing'), t.longest_word('oh my, dear'))"
    )
    said = subprocess.run(
        [sys.executable, "-c", asked], cwd=folder, capture_output=True, text=True, check=True
    )
    assert said.stdout == "a-tale-of-two AMT dear\n"


def test_the_example_writes_the_same_each_time(cli: Cli, folder: Path) -> None:
    outputs = []
    for name in ("a.py", "b.py"):
        assert cli("pipeline", "run", "--example", "--output", name).code == 0
        outputs.append((folder / name).read_text())
    assert outputs[0] == outputs[1]
    feedback = json.loads(cli("pipeline", "resume", run_ids(cli)[0], "--json").out)["feedback"]
    assert [one["kind"] for one in feedback] == ["validation_failure", "judge_soft_failure"]
    assert feedback[0]["text"].splitlines()[:2] == [
        "The plan was not valid.",
        "- error: slug: 2 of 3 examples are not checked",
    ]
    assert "failed: slug: example 2: AssertionError" in feedback[1]["text"]


def run_ids(cli: Cli) -> list[str]:
    return [json.loads(line)["run_id"] for line in cli("runs", "list", "--json").out.splitlines()]


SERVES = """
import asyncio

import stages
from orchestrator import LocalEngine, SqliteJournal
from orchestrator.pipeline import Pipeline


async def serve():
    async with SqliteJournal(".orchestrator/journal.db") as journal:
        pipeline = Pipeline(stages.plan, stages.valid, stages.work, stages.good, journal=journal, observers=())
        async with LocalEngine(pipeline, recover="resume", rescan=0.1):
            print("up", flush=True)
            await asyncio.Event().wait()


asyncio.run(serve())
"""


def wait_for(ready: Callable[[], bool]) -> None:
    """Wait for a condition in another process."""
    until = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.campaign
def test_a_person_answers_the_question_about_programs_for_an_engine_that_serves_the_run(
    cli: Cli, spec: Callable[..., str], folder: Path
) -> None:
    from orchestrator import SqliteJournal
    from orchestrator.pipeline import Pipeline

    spec()
    (folder / ".orchestrator").mkdir()

    async def leave() -> None:
        async with SqliteJournal(folder / ".orchestrator" / "journal.db") as journal:
            began = asyncio.Event()

            async def planner(_: Any) -> None:
                current = current_scope()
                assert current is not None
                current.run.note("program", {"mark": "m", "call": "c", "name": "coder", "host": "build-7"})
                await current.run.settle()
                began.set()
                await asyncio.Event().wait()

            pipeline = Pipeline(planner, *[lambda _: None] * 3, journal=journal, observers=())
            running = asyncio.create_task(pipeline.run("a page", run_id="r1"))
            await began.wait()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    asyncio.run(leave())
    engine = subprocess.Popen([sys.executable, "-c", SERVES], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert engine.stdout is not None
        assert engine.stdout.readline() == "up\n"
        wait_for(lambda: "parked (unknown_effect)" in cli("runs", "show", "r1").out)
        done = cli("pipeline", "resume", "r1", "--again", "--by", "Ada")
        assert (done.code, "posted: resume for run r1 by Ada" in done.out) == (0, True), done
        wait_for(lambda: "ended: completed" in cli("runs", "show", "r1").out)
    finally:
        engine.kill()
        engine.communicate()
