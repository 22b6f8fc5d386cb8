"""Guardrails of an agent: pure checks of its input and output, recorded, counted and tested again on their inputs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import orjson
import pytest
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from orchestrator import (
    LLM_LOOP,
    Agent,
    ConfigError,
    Limits,
    MemoryJournal,
    Message,
    Outcome,
    Response,
    Runs,
    ToolContext,
)
from orchestrator.backtest import Policy, RunTrace, backtest, trace_of
from orchestrator.errors import GuardrailRefused, StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.stored_run import check_decisions, guard_decisions
from orchestrator.kernel.fact import GuardEvaluated, OperationAttempt
from orchestrator.llm.message import FinishReason
from orchestrator.providers.scripted import call
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing import FunctionLLM, ScriptedLLM
from orchestrator_guards import Guardrail, Verdict
from tests.runtime.stage import Facts, agent

CARD = "4111 1111 1111 1111"
CARDS = {"cards": r"\b(?:\d[ -]?){13,16}\b"}
WITHHELD = "(This answer was withheld by the guardrail no_cards.)"


def no_cards(cards: int) -> Verdict:
    return Verdict(cards == 0, "no_cards", cards, detail="leave out card numbers")


def short(chars: int, most: int = 20) -> Verdict:
    return Verdict(chars <= most, "short", chars, most)


def cards(on_refusal: Literal["end", "refuse", "retry"]) -> Guardrail:
    return Guardrail(no_cards, CARDS, on_refusal)


class Refund(BaseModel):
    amount: int


def at_most_fifty(amount: int) -> Verdict:
    return Verdict(amount <= 50, "at_most_fifty", amount, 50)


FIFTY = Guardrail(at_most_fifty, {"amount": lambda refund: refund.amount}, "retry")

ENDINGS = [
    ("end", Outcome.FAILED),
    ("refuse", Outcome.REJECTED),
]


# ---- a refusal ends the run ----


@pytest.mark.parametrize(("on_refusal", "outcome"), ENDINGS)
async def test_a_refused_input_reaches_no_model_and_no_later_run(on_refusal: Any, outcome: Outcome) -> None:
    llm = ScriptedLLM(["Hello."])
    one = agent(llm, journal=MemoryJournal(), input_guards=[cards(on_refusal)], instructions="Be kind.")
    result = await one.run(f"Charge {CARD}", run_id="r", conversation_id="c")
    assert (result.outcome, result.reason, result.output) == (outcome, "guardrail", None)
    assert isinstance(result.error, GuardrailRefused)
    assert str(result.error) == "guardrail no_cards refused (observed 1): leave out card numbers"
    assert result.verdict == Verdict(False, "no_cards", 1, 0, "leave out card numbers")
    assert [message.role for message in result.messages] == ["system"]
    assert llm.requests == []
    again = await one.resume("r")
    assert (again.outcome, again.reason, again.verdict) == (outcome, "guardrail", result.verdict)
    assert str(again.error) == str(result.error)
    await one.run("Good morning", conversation_id="c")
    assert [message.text for message in llm.requests[0].messages] == ["Be kind.", "Good morning"]


@pytest.mark.parametrize(("on_refusal", "outcome"), [*ENDINGS, ("retry", Outcome.FAILED)])
async def test_a_refused_answer_is_no_output_and_in_no_message(on_refusal: Any, outcome: Outcome) -> None:
    llm = ScriptedLLM([CARD] * (3 if on_refusal == "retry" else 1) + ["Good evening."])
    one = agent(llm, journal=MemoryJournal(), output_guards=[cards(on_refusal)])
    result = await one.run("Which card?", run_id="r", conversation_id="c")
    assert (result.outcome, result.reason, result.output) == (outcome, "guardrail", None)
    assert [message.text for message in result.messages] == ["Which card?", WITHHELD]
    assert (await one.resume("r")).messages == result.messages
    await one.run("Good night", conversation_id="c")
    assert [message.text for message in llm.requests[-1].messages] == ["Which card?", WITHHELD, "Good night"]


async def test_the_model_reads_the_verdict_and_only_its_accepted_answer_stays() -> None:
    llm, facts = ScriptedLLM([CARD, "It ends in 1111."]), Facts()
    one = agent(llm, output_guards=[cards("retry")], observers=[facts])
    result = await one.run("Which card?")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "It ends in 1111.")
    assert "leave out card numbers" in llm.requests[1].messages[-1].text
    assert [message.text for message in result.messages] == ["Which card?", "It ends in 1111."]
    attempts = [(fact.operation, fact.outcome, fact.reason) for fact in facts.of(OperationAttempt)]
    assert ("completion", "retry", "guardrail") in attempts
    assert [(one.guard, one.result) for one in facts.of(GuardEvaluated) if one.guard == "no_cards"] == [
        ("no_cards", "deny"),
        ("no_cards", "allow"),
    ]


async def test_a_number_of_a_typed_output_is_checked_after_the_validators() -> None:
    llm = ScriptedLLM([Refund(amount=80), Refund(amount=30)])
    one = agent(llm, output_type=Refund, output_guards=[FIFTY])

    @one.output_validator
    def with_fee(output: Refund, _: ToolContext) -> Refund:
        return Refund(amount=output.amount + 15)

    result = await one.run("Refund 30")
    assert result.output == Refund(amount=45)
    assert "guardrail at_most_fifty refused (observed 95, limit 50)" in llm.requests[1].messages[-1].text


async def test_the_first_refusal_decides_and_every_guardrail_is_recorded() -> None:
    journal = MemoryJournal()
    one = agent([f"My card is {CARD}"], journal=journal, output_guards=[short, cards("refuse")])
    result = await one.run("?", run_id="r")
    assert (result.outcome, result.verdict) == (Outcome.FAILED, Verdict(False, "short", 30, 20))
    records = await journal.load("r")
    found = [one.evaluation for one in guard_decisions("r", records) if one.evaluation.guardrail]
    assert [(one.function, one.named, one.verdict.ok) for one in found] == [
        ("short", {"chars": 30}, False),
        ("no_cards", {"cards": 1}, False),
    ]
    assert check_decisions("r", records).different == []
    rows = [row for record in records for row in record.body.get("guards") or ()]
    assert CARD not in repr(rows)
    assert "leave out" not in repr(rows)


@pytest.mark.parametrize("on_refusal", ["end", "refuse", "retry"])
async def test_an_answer_of_the_wrap_up_turn_and_a_cut_answer_do_not_get_past(on_refusal: Any) -> None:
    wrapped = agent(
        [call("nothing"), CARD],
        output_guards=[cards(on_refusal)],
        limits=Limits(max_iterations=2, wrap_up_turns=1),
    )
    cut = agent(
        [Response(CARD, (), FinishReason.LENGTH.value)] * 3,
        output_guards=[cards(on_refusal)],
    )
    for one in (wrapped, cut):
        result = await one.run("?")
        assert (result.reason, result.output) == ("guardrail", None)
        assert result.messages[-1].text == WITHHELD


async def test_no_guardrail_is_evaluated_again_in_a_run_that_other_limits_ended() -> None:
    result = await agent(
        [call("nothing")], output_guards=[short], limits=Limits(max_iterations=1, max_tool_errors=0)
    ).run("?")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "max_iterations")


# ---- the input ----


async def test_only_the_new_messages_of_a_conversation_are_checked() -> None:
    history = [Message("user", "x" * 100), Message("assistant", "y" * 100)]
    one = agent(["Yes."] * 3, input_guards=[short])
    assert (await one.run([*history, Message("user", "And now?")])).outcome is Outcome.COMPLETED
    assert (await one.run([*history, Message("user", "z" * 21)])).outcome is Outcome.FAILED
    assert (await one.run([Message("user", "z" * 15), Message("user", "z" * 15)])).outcome is Outcome.FAILED


async def test_attachments_and_digests_are_inputs() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    blocked: list[str] = []

    def text_only(attachments: int) -> bool:
        return attachments == 0

    def known(digest: str) -> bool:
        blocked.append(digest)
        return True

    one = agent(["Yes."], input_guards=[text_only, known])
    result = await one.run([Message("user", [{"type": "text", "text": "Look"}, image])])
    assert (result.reason, result.verdict) == ("guardrail", Verdict(False, "text_only"))
    assert (await one.run("Look")).outcome is Outcome.COMPLETED
    assert blocked[0] == blocked[1]
    assert re.fullmatch("[0-9a-f]{16}", blocked[0])


# ---- a guardrail cannot fail open ----


async def waits(chars: int) -> bool:
    return chars > 0


BROKEN: list[tuple[Any, str]] = [
    (Guardrail(lambda chars: 1 / 0, name="broken"), "guardrail 'broken' raised ZeroDivisionError"),
    (Guardrail(lambda chars: "fine", name="broken"), "guardrail 'broken' returned str"),
    (
        Guardrail(lambda chars: Verdict(True, "broken", float("inf"), 1.0), name="broken"),
        "it must return a Verdict with finite numbers",
    ),
    (waits, "guardrail 'waits' returned coroutine"),
    (
        Guardrail(lambda x: True, {"x": lambda text: f"all of {text}"}, name="broken"),
        "input 'x' of guardrail",
    ),
    (Guardrail(lambda x: True, {"x": lambda text: float("nan")}, name="broken"), "input 'x' of guardrail"),
    (Guardrail(lambda x: True, {"x": lambda text: text.nothing}, name="broken"), "raised AttributeError"),
]


@pytest.mark.parametrize(("check", "why"), BROKEN)
@pytest.mark.parametrize("stage", ["input_guards", "output_guards"])
async def test_a_guardrail_that_cannot_be_evaluated_fails_the_run(check: Any, why: str, stage: str) -> None:
    result = await agent(["Yes."], **{stage: [check]}).run("?")
    assert (result.outcome, result.reason, result.output) == (Outcome.FAILED, "guard_error", None)
    assert why in str(result.error)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: agent([], input_guards=[cards("retry")]), "no model has answered yet; give 'refuse' or 'end'"),
    (lambda: agent([], input_guards=short), r"give a list: input_guards=\[my_check\]"),
    (lambda: agent([], output_guards=[short, short]), "two guardrails have the name 'short'"),
    (lambda: agent([], output_guards=["short"]), "give a function that returns a Verdict"),
    (lambda: agent([], output_guards=[lambda chars: True]), "'<lambda>' is no label of a metric; give name="),
    (
        lambda: agent([], output_guards=[no_cards]),
        "parameter 'cards'; it takes some of: chars, words, digest",
    ),
    (lambda: agent([]).replace(output_guards=[no_cards]), "parameter 'cards'"),
    (lambda: Guardrail(short, {"cards": "x"}), "an input 'cards' that its check does not take"),
    (lambda: Guardrail(no_cards, {"cards": "("}), "is no regular expression"),
    (lambda: Guardrail(no_cards, {"cards": 7}), "give a regular expression or a function"),  # type: ignore[dict-item]
    (lambda: Guardrail(short, {"chars": "x"}), "cannot be defined"),
    (lambda: Guardrail(short, name="iterations"), "has the name of another guard"),
    (lambda: Guardrail(short, on_refusal="stop"), "possible: 'end', 'refuse', 'retry'"),  # type: ignore[arg-type]
    (lambda: agent([], output_guardrails=[short]), r"here it is output_guards=\[…\]"),
]


@pytest.mark.parametrize(("make", "why"), WRONG)
def test_a_guardrail_that_cannot_work_is_refused_early(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


# ---- agents ----


async def test_variants_keep_guardrails_and_validators_or_have_others() -> None:
    base = agent([CARD], output_guards=[cards("refuse")])
    base.output_validator(lambda output, context: f"{output}!")
    variant = base.replace(model=ScriptedLLM([CARD, "Yes."]))
    assert (await variant.run("?")).outcome is Outcome.REJECTED
    assert (await variant.run("?")).output == "Yes.!"
    assert (await base.replace(model=ScriptedLLM([CARD]), output_guards=()).run("?")).output == f"{CARD}!"
    journalled = base.replace(model=ScriptedLLM([CARD]), journal=MemoryJournal())
    assert (await journalled.run("?")).outcome is Outcome.REJECTED
    assert base.replace(input_guards=[short]).machine.graph.fingerprint == LLM_LOOP.fingerprint


async def test_a_child_run_has_the_guardrails_of_its_own_agent() -> None:
    journal = MemoryJournal()
    clerk = Agent(ScriptedLLM([CARD]), name="clerk", output_guards=[cards("refuse")], observers=())
    llm = ScriptedLLM([call("clerk", task="Which card?"), "I may not say."])
    desk = Agent(
        llm, name="desk", tools=[clerk.as_tool("clerk", "Knows cards.")], journal=journal, observers=()
    )
    result = await desk.run("Which card?", run_id="p")
    assert result.output == "I may not say."
    assert CARD not in repr(llm.requests)
    child = await journal.head("p:1:0")
    assert (child.outcome, child.reason) == ("rejected", "guardrail")


@pytest.mark.parametrize("stage", ["input_guards", "output_guards"])
async def test_an_agent_that_takes_over_a_conversation_has_its_own_guardrails(stage: str) -> None:
    llm = ScriptedLLM([CARD])
    guards: dict[str, Any] = {stage: [cards("end")]}
    clerk: Agent = Agent(llm, name="clerk", observers=(), **guards)
    script = [call("transfer_to_clerk")]
    desk = agent(script, name="desk", handoffs=[clerk], journal=MemoryJournal())
    prompt = f"Charge {CARD}" if stage == "input_guards" else "Which card?"
    result = await desk.run(prompt)
    assert (result.outcome, result.reason, result.output) == (Outcome.FAILED, "guardrail", None)
    assert len(llm.requests) == (stage == "output_guards")


@pytest.mark.parametrize(("on_refusal", "outcome"), ENDINGS)
@pytest.mark.parametrize("refuses", ["triage", "billing"])
async def test_an_input_that_a_segment_refused_is_in_no_message_of_the_conversation(
    refuses: str, on_refusal: Any, outcome: Outcome
) -> None:
    guards: dict[str, list[Guardrail]] = {"triage": [], "billing": []}
    guards[refuses] = [cards(on_refusal)]
    second = ScriptedLLM(["paid"])
    billing = agent(second, name="billing", input_guards=guards["billing"])
    first = ScriptedLLM(["hello", call("transfer_to_billing"), "Good evening."])
    triage = agent(
        first, name="triage", handoffs=[billing], journal=MemoryJournal(), input_guards=guards["triage"]
    )
    await triage.run("Good morning", conversation_id="c")
    result = await triage.run(f"Charge {CARD}", run_id="r", conversation_id="c")
    assert (result.outcome, result.reason, second.requests) == (outcome, "guardrail", [])
    before = ["Good morning", "hello"]
    handed = ["", "billing takes over the conversation"] if refuses == "billing" else []
    assert [message.text for message in result.messages] == [*before, *handed]
    for stored in (await triage.resume("r"), await triage.runs.result("r")):
        assert (stored.messages, stored.reason) == (result.messages, "guardrail")
    await triage.run("Good night", conversation_id="c")
    last = (second if refuses == "billing" else first).requests[-1].messages
    assert [message.text for message in last] == [*before, *handed, "Good night"]


async def test_guardrails_are_counted_and_exist_at_zero() -> None:
    registry = CollectorRegistry()
    one = Agent(
        ScriptedLLM([CARD]), name="clerk", output_guards=[cards("end")], observers=[Metrics(registry)]
    )

    def count(result: str) -> float | None:
        labels = {"machine": "llm_loop", "agent": "clerk", "guard": "no_cards", "result": result}
        return registry.get_sample_value("orchestrator_guard_evaluations_total", labels)

    def ended() -> float | None:
        labels = {"machine": "llm_loop", "agent": "clerk", "outcome": "failed", "reason": "guardrail"}
        return registry.get_sample_value("orchestrator_runs_completed_total", labels)

    assert (count("allow"), count("deny"), ended()) == (0, 0, 0)
    await one.run("?")
    assert (count("allow"), count("deny"), ended()) == (0, 1, 1)


# ---- crashes ----


async def crashed(journal: CrashingJournal, script: Sequence[Any], guards: Any) -> None:
    with suppress(StoreDown):
        await guarded(journal, script, guards).run("Which card?", run_id="r")


def guarded(journal: Any, script: Sequence[Any], guards: Any) -> Agent:
    llm = FunctionLLM(lambda request: script[sum(one.role == "assistant" for one in request.messages)])
    return agent(llm, journal=journal, output_guards=guards, input_guards=[Guardrail(short, name="brief")])


@pytest.mark.parametrize("on_refusal", ["end", "refuse", "retry"])
async def test_a_crash_at_any_append_changes_neither_end_nor_messages(on_refusal: Any) -> None:
    guards = [cards(on_refusal)]
    script = [CARD, "It ends in 1111."]
    whole = CrashingJournal(MemoryJournal())
    await crashed(whole, script, guards)
    expected = await guarded(whole, script, guards).resume("r")
    assert expected.reason == ("none" if on_refusal == "retry" else "guardrail")
    for at, when in itertools.product(range(1, len(whole.writes)), ("before", "after")):
        inner = MemoryJournal()
        await crashed(CrashingJournal(inner, at=at, when=when), script, guards)  # type: ignore[arg-type]
        inner.bury((await inner.head("r")).owner or "")
        result = await guarded(inner, script, guards).resume("r")
        assert (result.outcome, result.reason) == (expected.outcome, expected.reason), (at, when)
        assert (result.output, result.messages) == (expected.output, expected.messages), (at, when)


# ---- backtests ----


async def recorded(script: Sequence[Any], **options: Any) -> MemoryJournal:
    journal = MemoryJournal()
    await agent(script, journal=journal, **options).run("Which card?")
    return journal


def longest(most: int, on_refusal: Literal["end", "refuse", "retry"] = "end") -> Guardrail:
    return Guardrail(lambda chars: Verdict(chars <= most, "short", chars, most), {}, on_refusal, name="short")


SHORT = [longest(20, "retry")]
BACKTESTS: list[tuple[str, list[Any], list[Guardrail], Policy, tuple[str, str | None]]] = [
    ("as recorded", ["Yes."], SHORT, Policy(), ("none", None)),
    ("an equal guardrail", ["Yes."], SHORT, Policy(output_guards=SHORT), ("none", None)),
    ("refuses what was accepted", ["Yes."], SHORT, Policy(output_guards=[longest(2)]), ("stop", "harm")),
    ("asks again", ["Yes."], SHORT, Policy(output_guards=[longest(2, "retry")]), ("open_end", None)),
    (
        "accepts what was asked again",
        ["z" * 30, "No."],
        SHORT,
        Policy(output_guards=()),
        ("stop", "undecided"),
    ),
    ("accepts what failed", ["z" * 30] * 3, SHORT, Policy(output_guards=()), ("stop", "benefit")),
    ("ends a retried run", ["z" * 30, "No."], SHORT, Policy(output_guards=[longest(20)]), ("stop", "harm")),
    ("accepts what ended", ["z" * 30], [longest(20)], Policy(output_guards=()), ("open_end", None)),
]


@pytest.mark.parametrize(
    ("script", "guards", "policy", "expected"),
    [row[1:] for row in BACKTESTS],
    ids=[row[0] for row in BACKTESTS],
)
async def test_other_guardrails_are_tested_on_the_recorded_inputs(
    script: list[Any], guards: list[Guardrail], policy: Policy, expected: tuple[str, str | None]
) -> None:
    journal = await recorded(script, output_guards=guards)
    traces = [trace_of(head.run_id, await journal.load(head.run_id)) async for head in journal.runs()]
    carried = [RunTrace.from_json(orjson.loads(orjson.dumps(trace.as_json()))) for trace in traces]
    for source in (Runs(journal), traces, carried):
        found: list[Any] = []
        report = await backtest(source, policy, each=found.append)
        assert report.left_out == {}
        assert [(one.change, one.effect) for one in found] == [expected]
        if one := found[0].difference:
            assert one.guard == "short"


async def test_an_input_can_be_tested_and_what_the_records_lack_is_said() -> None:
    journal = await recorded(["Yes."], input_guards=[short])
    report = await backtest(Runs(journal), Policy(input_guards=[longest(5)]))
    assert (report.harm, report.stops["harm"].saved.requests) == (1, 1)
    for policy, why in [
        (
            Policy(input_guards=[cards("end")]),
            "its records do not have 'cards', which guardrail 'no_cards' needs",
        ),
        (
            Policy(output_guards=[short]),
            "its records have no inputs of output_guards: its agent had no such guardrails",
        ),
    ]:
        assert list((await backtest(Runs(journal), policy)).left_out) == [why]


async def test_a_guardrail_that_is_not_pure_is_refused_in_a_backtest() -> None:
    journal = await recorded(["Yes."], output_guards=[short])
    answers = itertools.count()
    for check, why in [
        (Guardrail(lambda chars: next(answers) % 2 == 0, name="short"), "two answers to the same inputs"),
        (Guardrail(lambda chars: 1 / 0, name="short"), "raised ZeroDivisionError"),
    ]:
        with pytest.raises(ConfigError, match=why):
            await backtest(Runs(journal), Policy(output_guards=[check]))
