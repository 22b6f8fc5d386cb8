"""A stage that is a program: what it reads, and what each way to answer means. Every program here is a real one."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.pipeline.spec import CommandStage, StageFailed
from orchestrator.machines.pipeline.model import Feedback, FeedbackKind, OrchestrationState, StageRequest
from orchestrator.pipeline import Evaluation, Implementation, Issue, Plan, Rubric, Severity, Validation
from tests.passing_time import pass_time

REQUEST = StageRequest(
    stage=OrchestrationState.JUDGING,
    spec={"title": "a page"},
    iteration=1,
    refinement=2,
    feedback=(Feedback(FeedbackKind.JUDGE_SOFT_FAILURE, "too short", 1),),
    plan=Plan(["begin", "end"], 5),
    validation=Validation((Issue(Severity.WARNING, "thin", "end"),)),
    implementation=Implementation("draft"),
    evaluation=Evaluation(6.0, {"style": 5.0}, "hm"),
    remaining_tokens=100,
    key="r1:judging:4",
    run_id="r1",
)
RUBRIC = Rubric(top=100, approve=70, hard=50, category=60)


def stage(state: OrchestrationState, script: str, **options: Any) -> CommandStage:
    return CommandStage(state, [sys.executable, "-c", script], rubric=RUBRIC, **options)


def answer(state: OrchestrationState, script: str, **options: Any) -> Any:
    return asyncio.run(stage(state, script, **options)(REQUEST))


def says(text: str, code: int = 0, err: str = "") -> str:
    """A program that prints this and ends with that code."""
    return f"import sys; sys.stdin.read(); print({text!r}); print({err!r}, file=sys.stderr); sys.exit({code})"


def test_the_request_is_one_json_object_on_standard_input() -> None:
    assert answer(OrchestrationState.PLANNING, "import sys; print(sys.stdin.read())") == {
        "stage": "judging",
        "spec": {"title": "a page"},
        "iteration": 1,
        "refinement": 2,
        "feedback": [{"kind": "judge_soft_failure", "text": "too short", "iteration": 1}],
        "plan": ["begin", "end"],
        "validation": {"ok": True, "issues": [{"severity": "warning", "where": "end", "message": "thin"}]},
        "implementation": "draft",
        "evaluation": {"score": 6.0, "categories": {"style": 5.0}, "comments": "hm"},
        "remaining_tokens": 100,
        "key": "r1:judging:4",
        "run_id": "r1",
    }


ANSWERS: dict[str, tuple[OrchestrationState, str, Any]] = {
    "a plan as text": (OrchestrationState.PLANNING, says("first\nthen"), Plan("first\nthen")),
    "a plan as data": (OrchestrationState.PLANNING, says('{"steps": 2}'), {"steps": 2}),
    "a plan with tokens": (OrchestrationState.PLANNING, says('{"content": [1], "tokens": 7}'), Plan([1], 7)),
    "a plan that has a content": (
        OrchestrationState.PLANNING,
        says('{"content": 1, "more": 2}'),
        {"content": 1, "more": 2},
    ),
    "an implementation": (OrchestrationState.IMPLEMENTING, says("x = 1"), Implementation("x = 1")),
    "valid": (OrchestrationState.VALIDATING, says(""), Validation()),
    "valid, with words": (OrchestrationState.VALIDATING, says("looks good"), Validation()),
    "invalid, line by line": (
        OrchestrationState.VALIDATING,
        says("no end\n\n  no title", 1),
        Validation((Issue(Severity.ERROR, "no end"), Issue(Severity.ERROR, "no title"))),
    ),
    "issues as data": (OrchestrationState.VALIDATING, says('{"issues": []}', 1), {"issues": []}),
    "issues as a list": (OrchestrationState.VALIDATING, says("[]"), []),
    "approved": (OrchestrationState.JUDGING, says("12 passed"), Evaluation(100, comments="12 passed")),
    "to be refined": (OrchestrationState.JUDGING, says("2 failed", 1), Evaluation(50, comments="2 failed")),
    "a score": (
        OrchestrationState.JUDGING,
        says('{"score": 61, "tokens": 3}', 1),
        {"score": 61, "tokens": 3},
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_it_prints_and_its_exit_code_are_the_answer(name: str) -> None:
    state, script, wanted = ANSWERS[name]
    assert answer(state, script) == wanted


FAILURES: dict[str, tuple[OrchestrationState, str, str]] = {
    "a planner": (OrchestrationState.PLANNING, says("half", 1, "no idea"), "ended with exit code 1: no idea"),
    "a judge that is cut off": (
        OrchestrationState.JUDGING,
        says('{"score": 2, "comm'),
        "printed what is no answer",
    ),
    "a judge that says a number": (
        OrchestrationState.JUDGING,
        says("2"),
        "printed what is no answer of this stage",
    ),
    "a judge that says null": (
        OrchestrationState.JUDGING,
        says("null"),
        "printed what is no answer of this stage",
    ),
    "a validator that is cut off": (
        OrchestrationState.VALIDATING,
        says('{"issues": [{"sev'),
        "printed what is no answer",
    ),
    "a validator that says false": (
        OrchestrationState.VALIDATING,
        says("false"),
        "printed what is no answer",
    ),
    "an implementer": (OrchestrationState.IMPLEMENTING, says("half", 3), "ended with exit code 3"),
    "a validator that crashed": (
        OrchestrationState.VALIDATING,
        "1/0",
        "exit code 1 and printed nothing: Traceback",
    ),
    "a judge that crashed": (OrchestrationState.JUDGING, "1/0", "ZeroDivisionError"),
    "another code": (OrchestrationState.JUDGING, says('{"score": 99}', 2), "ended with exit code 2"),
    "killed": (OrchestrationState.JUDGING, "import os; os.kill(os.getpid(), 9)", "ended with exit code -9"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_program_that_fails_approves_nothing(name: str) -> None:
    state, script, said = FAILURES[name]
    with pytest.raises(StageFailed) as error:
        answer(state, script)
    assert said in str(error.value)
    assert str(error.value).startswith(f"{state.value}: {sys.executable} ")
    assert "\n" not in str(error.value)


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(CommandStage(OrchestrationState.JUDGING, ["/nowhere/judge"], rubric=RUBRIC)(REQUEST))


def test_no_shell_reads_the_words() -> None:
    words = ["$HOME", "; echo no", "a  b"]
    argv = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *words]
    assert asyncio.run(CommandStage(OrchestrationState.PLANNING, argv, rubric=RUBRIC)(REQUEST)) == words


class Inner:
    """A process that a program starts: it says that it lives, waits for ever, and holds the program's pipes."""

    def __init__(self, folder: Path) -> None:
        self._fifo = folder / "alive"
        os.mkfifo(self._fifo)
        held = f"alive = open({str(self._fifo)!r}, 'w'); print('here', file=alive, flush=True)"
        inner = f"import threading; {held}; threading.Event().wait()"
        self.started_by = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
        self._said: Any = None

    def lives(self) -> None:
        """Return when it has been started."""
        self._said = self._fifo.open()
        assert self._said.readline() == "here\n"

    def ends(self) -> None:
        """Return when it is dead: only then the other end of the pipe is closed."""
        with self._said as said:
            assert said.read() == ""


def test_a_cancelled_program_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    inner = Inner(tmp_path)

    async def cancelled() -> None:
        running = asyncio.create_task(stage(OrchestrationState.JUDGING, inner.started_by)(REQUEST))
        await asyncio.to_thread(inner.lives)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    inner.ends()


def test_a_program_that_takes_too_long_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Inner(tmp_path)

    async def late() -> None:
        running = asyncio.create_task(
            stage(OrchestrationState.JUDGING, inner.started_by, timeout=600.0)(REQUEST)
        )
        await asyncio.to_thread(inner.lives)
        pass_time(monkeypatch, 600)
        with pytest.raises(StageFailed, match=r"took longer than 600 s$"):
            await running

    asyncio.run(late())
    inner.ends()


def test_big_requests_and_answers_pass() -> None:
    script = "import sys; text = sys.stdin.read(); print('x' * 3_000_000 + str(len(text)))"
    big = StageRequest(stage=OrchestrationState.IMPLEMENTING, spec="y" * 3_000_000, iteration=0, refinement=0)
    made = asyncio.run(stage(OrchestrationState.IMPLEMENTING, script)(big))
    assert made.content.startswith("xxx")
    assert int(made.content.lstrip("x")) > 3_000_000
