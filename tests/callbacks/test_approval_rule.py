"""The approval rule of a tool: which answers count, and that any other one asks a person and says why."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.llm.message import ToolCall
from orchestrator.tools.spec import tool
from orchestrator_callbacks.llm_loop.admission import (
    ApprovalDecision,
    approval_flag,
    definition_of,
    digest_of,
    judge_call,
    tool_digest,
)
from orchestrator_guards import Verdict
from tests.callbacks.stand import loop_run

CALL = ToolCall("1", "pay", '{"amount":5}')


def pay(approval: bool | Callable[[dict[str, Any]], Any]) -> Any:
    @tool(name="pay", approval=approval)
    def payment(amount: int) -> str:
        return "paid"

    return payment.spec if hasattr(payment, "spec") else payment


def judged(answer: Any) -> ApprovalDecision:
    return judge_call(pay(lambda arguments: answer), CALL)


@pytest.mark.parametrize(
    ("approval", "asks", "flag"),
    [(True, True, "always"), (False, False, "never"), (lambda _: False, False, "rule")],
)
def test_a_tool_says_always_never_or_by_a_rule(approval: Any, flag: str, *, asks: bool) -> None:
    assert judge_call(pay(approval), CALL) == ApprovalDecision(asks)
    assert approval_flag(pay(approval)) == flag
    declared = tool_digest(pay(approval))
    assert definition_of([pay(approval)]) == {"pay": declared}
    assert tool_digest(replace(pay(approval), kind="mcp")) == f"mcp:{declared}", (
        "stored in each run of the agent"
    )


def test_an_unknown_tool_asks_nobody() -> None:
    assert judge_call(None, CALL) == ApprovalDecision(asks=False)
    assert approval_flag(None) == "never"


def test_a_rule_reads_the_arguments_and_answers_with_a_bool_or_a_verdict() -> None:
    seen: list[dict[str, Any]] = []

    def rule(arguments: dict[str, Any]) -> bool:
        seen.append(arguments)
        return True

    judge_call(pay(rule), CALL)
    assert seen == [{"amount": 5}]
    assert judged(True) == ApprovalDecision(asks=True)
    for ok in (True, False):
        verdict = Verdict(ok, "amount", 5, 3)
        assert judged(verdict) == ApprovalDecision(not ok, verdict)


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(1, "amount"),  # type: ignore[arg-type]
        Verdict(False, 5),  # type: ignore[arg-type]
        Verdict(False, "\ud800"),
        Verdict(False, "amount", detail=None),  # type: ignore[arg-type]
        Verdict(False, "amount", math.nan),
        Verdict(False, "amount", 1, math.inf),
        Verdict(False, "amount", "5"),  # type: ignore[arg-type]
        Verdict(True, "amount", math.inf),
    ],
)
def test_a_verdict_that_cannot_be_stored_asks_a_person(verdict: Verdict) -> None:
    why = (
        "the approval rule of this tool returned Verdict, not a bool or a valid Verdict, so a person is asked"
    )
    assert judged(verdict) == ApprovalDecision(asks=True, notice=why)


@pytest.mark.parametrize(("answer", "kind"), [(None, "NoneType"), (1, "int"), ("no", "str")])
def test_an_answer_of_another_type_asks_a_person(answer: Any, kind: str) -> None:
    why = (
        f"the approval rule of this tool returned {kind}, not a bool or a valid Verdict, so a person is asked"
    )
    assert judged(answer) == ApprovalDecision(asks=True, notice=why)


@pytest.mark.parametrize(("length", "cut"), [(10, False), (1000, True)])
def test_a_rule_that_fails_asks_a_person_and_names_the_error(length: int, *, cut: bool) -> None:
    def fails(_: dict[str, Any]) -> bool:
        raise ValueError("x" * length)

    decision = judge_call(pay(fails), CALL)
    assert (decision.asks, decision.verdict) == (True, None)
    before, after = "the approval rule of this tool ", ", so a person is asked"
    assert decision.notice.startswith(f"{before}failed (")
    assert decision.notice.endswith(after)
    middle = decision.notice.removeprefix(before).removesuffix(after)
    assert ("x" * length in middle) is not cut
    assert middle.endswith("…" if cut else ")")
    assert len(middle) == 300 if cut else len(middle) < 300


def test_the_digest_of_a_call_covers_its_tool_its_arguments_and_what_it_is_about() -> None:
    run = loop_run(tools=[pay(True)])
    one = digest_of(run, CALL, "1:0")
    assert one == digest_of(run, ToolCall("2", "PAY", CALL.arguments), "1:0"), "a tool has one name"
    others = [
        digest_of(run, CALL, "1:1"),
        digest_of(run, ToolCall("1", "pay", '{"amount":6}'), "1:0"),
        digest_of(loop_run(tools=[pay(lambda _: True)]), CALL, "1:0"),
        digest_of(loop_run(tools=[pay(False)]), CALL, "1:0"),
        digest_of(loop_run(), CALL, "1:0"),
    ]
    assert len({one, *others}) == 6
