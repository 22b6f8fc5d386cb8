"""How a project stands, in words: every part of what is known is said once, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.approval import difference
from orchestrator.cli.approval import status as standing
from orchestrator.cli.approval.progress import Steps, line, output_lines
from orchestrator.cli.approval.project import limits_of
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import visible
from orchestrator.errors import ConfigError
from orchestrator.machines.approval.model import ApprovalState
from orchestrator.machines.approval.plan import ApprovalPlan, FileChange, PlanStep, StepKind
from orchestrator.runtime.approval.status import (
    Drift,
    IntentQuestion,
    RecoveryNote,
    Status,
    StepFact,
    StepState,
)
from orchestrator.runtime.approval.workspace import FileDiff

CREATE = PlanStep(id="1", kind=StepKind.CREATE, files=(FileChange(path="a b.txt", content="x\n"),))
RUN = PlanStep(id="10", kind=StepKind.RUN, argv=("echo", "a b"), timeout=5)
PLAN = ApprovalPlan(id="plan-1", version=2, goal="Two things.", steps=(CREATE, RUN))


def told(**members: Any) -> list[str]:
    return list(standing.lines(Status(**{"state": ApprovalState.IDLE, **members}), None))


def test_a_project_where_nothing_happened_is_one_line() -> None:
    assert told() == ["state: Idle"]


def test_a_plan_is_told_with_each_step_and_how_it_stands() -> None:
    steps = (StepState("1", "done"), StepState("10", "unknown"))
    assert told(state=ApprovalState.PAUSED, plan=PLAN, plan_status="approved", steps=steps) == [
        "state: Paused",
        "plan: plan-1 version 2, approved",
        "   1  done     create a b.txt",
        "  10  unknown  run echo 'a b'",
    ]


@pytest.mark.parametrize(
    ("left", "said"), [(1800, "expires in 30m ("), (90, "expires in 90s ("), (-1, "now")]
)
def test_a_plan_that_waits_says_how_long_it_may(left: float, said: str) -> None:
    status = Status(
        state=ApprovalState.AWAITING_APPROVAL, plan=PLAN, plan_status="pending", expires_at=1000 + left
    )
    assert said in next(standing.plan_lines(status, now=1000.0))


def test_a_plan_that_never_expires_says_nothing_of_it() -> None:
    status = Status(state=ApprovalState.AWAITING_APPROVAL, plan=PLAN, plan_status="pending")
    assert next(standing.plan_lines(status)) == "plan: plan-1 version 2, pending"


def test_what_was_understood_is_asked_about_with_how_sure_that_is() -> None:
    question = IntentQuestion("Really?", {"kind": "AddFeature", "summary": "A note"}, 0.7)
    assert told(question=question)[1:] == [
        "understood: AddFeature, A note",
        "question: Really? (confidence 0.70)",
    ]
    assert told(question=IntentQuestion("Say it in other words."))[1:] == ["question: Say it in other words."]


def test_work_whose_process_died_is_told_as_nobodys() -> None:
    assert told(state=ApprovalState.EXECUTING, crashed=True) == [
        "state: Executing",
        "owner: none; the last process ended before its work was complete",
    ]


def test_an_error_says_code_place_reason_and_the_way_out() -> None:
    error = {
        "code": "VAL-003",
        "category": "validation",
        "severity": "error",
        "message": "a diff\ndoes not fit",
        "technical_detail": "line 3",
        "recovery_path": "Retry",
        "step": "1",
        "path": "a.txt",
    }
    assert told(state=ApprovalState.FAILED, error=error)[1:] == [
        "error: VAL-003 step 1: file a.txt: a diff does not fit",
        "  detail: line 3",
        "  validation, error; recovery: Retry",
    ]


def test_files_that_are_not_as_they_should_be_are_named_with_the_reason() -> None:
    conflicts = (
        {"path": "b", "why": "changed"},
        {"path": "c", "found": "ab" * 32},
        {"path": "d", "found": None},
    )
    assert told(drift=(Drift("a", "gone"),), undone=("e",), conflicts=conflicts)[1:] == [
        "undone: e",
        "conflict: a: gone",
        "conflict: b: changed",
        "conflict: c: changed by another program (found abababababab); it was kept",
        "conflict: d: changed by another program (the file is missing); it was kept",
    ]


def test_a_recovery_says_what_was_found_kept_put_back_and_what_only_a_person_can_decide() -> None:
    recovered = RecoveryNote(
        "Executing",
        "Paused",
        "it ended",
        kept=("1", "2"),
        undone=("c.txt",),
        conflicts=({"path": "d", "why": "changed"},),
        options=("resume --again, if it may run again", "cancel", "look yourself"),
    )
    assert list(standing.recovery_lines(recovered, "the shop")) == [
        "recovered: Executing was interrupted, now Paused",
        "  it ended",
        "  complete and kept: 2 steps (1, 2)",
        "  restored, of the interrupted step: c.txt",
        "  conflict: d: changed",
        "  you can: orchestrator approval resume --again --project 'the shop'  (if it may run again)",
        "  you can: look yourself",
    ]


def test_a_recovery_of_a_cancel_speaks_of_no_open_step() -> None:
    recovered = RecoveryNote("Cancelling", "Idle", "", undone=("a.txt", "c.txt"))
    assert list(standing.recovery_lines(recovered, None)) == [
        "recovered: Cancelling was interrupted, now Idle",
        "  restored: a.txt, c.txt",
    ]


def test_what_can_be_done_is_told_as_commands_that_can_be_typed_here() -> None:
    lines = list(standing.action_lines(("approve", "changes", "reject", "cancel", "show", "diff"), "a b"))
    assert [one.split("  ")[1] for one in lines[1:]] == [
        "orchestrator approval show --project 'a b'",
        "orchestrator approval diff --project 'a b'",
        "orchestrator approval approve --project 'a b'",
        "orchestrator approval changes --project 'a b' TEXT",
        "orchestrator approval reject --project 'a b'",
    ]
    assert list(standing.action_lines((), None)) == []
    assert list(standing.action_lines(("confirm", "submit", "show"), None))[1:] == [
        "  orchestrator approval submit --confirm  confirm the interpreted request and plan it",
        "  orchestrator approval submit TEXT       describe the work",
    ]


@pytest.mark.parametrize(
    ("state", "plan_status", "code", "carried"),
    [
        (ApprovalState.IDLE, "completed", Exit.COMPLETED, Exit.COMPLETED),
        (ApprovalState.IDLE, "cancelled", Exit.COMPLETED, Exit.CANCELLED),
        (ApprovalState.PAUSED, "approved", Exit.PARTIAL, Exit.PARTIAL),
        (ApprovalState.FAILED, "failed", Exit.FAILED, Exit.FAILED),
        (ApprovalState.AWAITING_APPROVAL, "pending", Exit.COMPLETED, Exit.COMPLETED),
    ],
)
def test_the_exit_code_says_how_it_ended(
    state: ApprovalState, plan_status: str, code: Exit, carried: Exit
) -> None:
    status = Status(state=state, plan_status=plan_status)
    assert (standing.code(status), standing.execution_code(status)) == (code, carried)


def test_a_step_is_a_line_when_it_begins_and_when_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    begins = StepFact(RUN, 2, 2, "begins", "running")
    ends = StepFact(RUN, 2, 2, "ends", "done", 1.5)
    assert line(begins) == "step 2 of 2  run echo 'a b' …"
    assert line(ends) == "step 2 of 2  run echo 'a b': done, 1.500 s"

    async def both(steps: Steps) -> None:
        with steps.showing():
            await steps(begins)
            await steps(ends)

    asyncio.run(both(Steps(lambda: None)))
    assert capsys.readouterr().out == f"  {line(begins)}\n  {line(ends)}\n"
    asyncio.run(both(Steps(lambda: None, quiet=True)))
    assert capsys.readouterr().out == ""


def test_the_end_of_what_a_command_printed_is_below_its_step_and_drives_no_terminal() -> None:
    fact = StepFact(RUN, 2, 2, "ends", "failed", 1.0, output="one\n\x1b[2Jtwo\n")
    assert line(fact) == "step 2 of 2  run echo 'a b': failed, 1.000 s"
    assert output_lines(fact) == ["    | one", r"    | \x1b[2Jtwo"]
    long = StepFact(RUN, 2, 2, "ends", "done", 1.0, output="\n".join(map(str, range(25))))
    assert output_lines(long)[:2] == ["    | … 5 lines before", "    | 5"]
    assert output_lines(long)[-1] == "    | 24"
    assert output_lines(StepFact(RUN, 2, 2, "begins", "running")) == []


def test_a_pace_ends_at_once_for_who_is_in_a_hurry() -> None:
    steps = Steps(lambda: None, pace=600, quiet=True)

    async def hurried() -> None:
        waiting = asyncio.create_task(steps(StepFact(RUN, 1, 1, "begins", "running")))
        await asyncio.sleep(0)
        assert not waiting.done()
        steps.hurry()
        await asyncio.wait_for(waiting, 5)
        await asyncio.wait_for(steps(StepFact(RUN, 1, 1, "begins", "running")), 5)

    asyncio.run(hurried())


def test_a_reader_that_is_gone_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[bool] = []
    steps = Steps(lambda: lost.append(True))

    def gone(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("orchestrator.cli.approval.progress.say", gone)
    for _ in range(3):
        asyncio.run(steps(StepFact(RUN, 1, 1, "begins", "running")))
    assert lost == [True]


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\n")), max_size=8), st.booleans())
def test_every_line_of_a_diff_is_shown_whole_and_in_its_order(lines: list[str], ends: bool) -> None:
    body = "".join(f"+{one}\n" for one in lines).removesuffix("" if ends else "\n")
    text = f"--- /dev/null\n+++ b/x\n@@ -0,0 +1,{len(lines)} @@\n{body}"
    shown = list(difference.lines([FileDiff("1", "create", "x", text, len(lines))], {}, colour=False))
    expected: Iterator[str] = (visible(f"+{one}".removesuffix("\r")) for one in lines)
    assert [one for one in shown if one.startswith("+") and one != "+++ b/x"] == list(expected)
    assert shown[-1] == f"1 file, +{len(lines)} -0"


def test_a_line_that_looks_like_a_heading_of_a_diff_is_one_of_the_file() -> None:
    text = "--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n---- a/secret\n-+++ b/secret\n+x\n"
    shown = list(difference.lines([FileDiff("1", "edit", "x", text, 1, 2)], {}, colour=True))
    assert "\x1b[31m---- a/secret\x1b[0m" in shown
    assert "\x1b[31m-+++ b/secret\x1b[0m" in shown
    assert "\x1b[1m--- a/x\x1b[0m" in shown


def test_limits_of_a_plan_are_named_like_the_others() -> None:
    limits = limits_of({"steps": "5", "expiry_seconds": 0, "denied": ["*.lock"]})
    assert (limits.caps.steps, limits.expiry_seconds, limits.caps.denied) == (5, 0, ("*.lock",))
    with pytest.raises(ConfigError, match="unknown limit 'caps'"):
        limits_of({"caps": {}})
