"""Handoffs: agents that take over one conversation from each other, in one run whose segments are child runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from orchestrator.errors import AnswerRefused, ConfigError, OtherAgent
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import HandedOver, RunStarted
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Request, Usage
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.team.graph import LLM_LOOP_WITH_HANDOFFS
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.runtime.team.handoff import handoff
from orchestrator.runtime.team.team import Team
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import RunContext, ToolContext, tool
from orchestrator_guards import Verdict
from tests.runtime.stage import NO_WAIT, Facts, Notebook, faults

USAGE = Usage(10, 5)
SILENT: dict[str, Any] = {"observers": (), "retry": NO_WAIT}
TO_BILLING, TO_TRIAGE = call("transfer_to_billing"), call("transfer_to_triage")


def agent(name: str, *script: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedLLM(script, usage=USAGE), name=name, **{**SILENT, **options})


def pair(*answers: Any, billing: Sequence[Any] = ("paid",), **options: Any) -> Agent[Any, Any]:
    """Triage, which hands over to billing with its first answer unless it has others."""
    other = agent("billing", *billing)
    return agent("triage", *(answers or ([TO_BILLING],)), handoffs=[other], **options)


def requests(one: Agent[Any, Any]) -> list[Request]:
    found: list[Request] = one._deps.llm.requests  # type: ignore[attr-defined]
    return found


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


async def children(journal: MemoryJournal, run_id: str) -> list[tuple[str, str, str]]:
    return [(head.run_id, head.agent, head.status) async for head in journal.runs(parent_run_id=run_id)]


# ---- one run, several agents ----


async def test_another_agent_takes_over_the_conversation_in_the_same_run() -> None:
    journal, facts = MemoryJournal(), Facts()
    billing = agent("billing", "paid", instructions="You bill.")
    triage = agent(
        "triage",
        [TO_BILLING],
        handoffs=[billing],
        instructions="You triage.",
        journal=journal,
        observers=[facts],
    )
    result = await triage.run("pay me", run_id="p", tags={"tenant": "a"}, metadata={"order": 7})

    assert (result.outcome, result.reason, result.output) == (Outcome.COMPLETED, "none", "paid")
    assert (result.agent, [(one.agent, one.to, one.run_id) for one in result.handoffs]) == (
        "billing",
        [("triage", "billing", "p:s1")],
    )
    assert texts(result.messages) == ["pay me", "", "billing takes over the conversation", "paid"]
    assert result.usage.input_tokens == 20
    assert await children(journal, "p") == [("p:s1", "triage", "ended"), ("p:s2", "billing", "ended")]
    first, second = requests(triage)[0].messages, requests(billing)[0].messages
    assert (texts(first), texts(second)[:2]) == (["You triage.", "pay me"], ["You bill.", "pay me"])
    for name in ("p", "p:s1", "p:s2"):
        head = await journal.head(name)
        assert head.tags == {"tenant": "a"}
    segment = await triage.runs.result("p:s1")
    assert (segment.outcome, segment.reason, segment.output) == (Outcome.COMPLETED, "handed_over", None)
    handed = facts.of(HandedOver)
    assert [(fact.run_id, fact.source, fact.to) for fact in handed] == [("p", "triage", "billing")]


async def test_a_stored_run_has_the_same_result_as_the_live_one() -> None:
    triage = pair(journal=MemoryJournal())
    live = await triage.run("pay me", run_id="p")
    for stored in (await triage.resume("p"), await triage.runs.result("p")):
        assert (stored.messages, stored.handoffs, stored.agent) == (live.messages, live.handoffs, live.agent)
        assert (stored.output, stored.usage, stored.finish_reason) == (
            live.output,
            live.usage,
            live.finish_reason,
        )
        assert [step.event for step in stored.transitions] == ["start", "hand_over", "take_over", "answered"]


async def test_an_agent_that_hands_nothing_over_answers_itself() -> None:
    result = await pair("hello").run("hi")
    assert (result.output, result.agent, result.handoffs) == ("hello", "triage", ())


async def test_a_conversation_goes_back_and_forth_by_name() -> None:
    billing = agent("billing", [TO_TRIAGE], "settled", handoffs=["triage"])
    triage = agent("triage", [TO_BILLING], [TO_BILLING], handoffs=[billing])
    result = await triage.run("pay me")
    assert [(one.agent, one.to) for one in result.handoffs] == [
        ("triage", "billing"),
        ("billing", "triage"),
        ("triage", "billing"),
    ]
    assert (result.output, result.agent) == ("settled", "billing")


async def test_the_output_of_a_team_is_typed() -> None:
    class Bill(BaseModel):
        total: int

    billing = agent("billing", '{"total": 7}', output_type=Bill)
    triage = agent("triage", [TO_BILLING], handoffs=[billing], output_type=Bill, journal=MemoryJournal())
    assert (await triage.run("go", run_id="p")).output == Bill(total=7)
    assert (await triage.resume("p")).output == Bill(total=7)


async def test_a_team_is_a_tool_of_another_agent() -> None:
    journal = MemoryJournal()
    desk = pair()
    boss = agent(
        "boss", [call("desk", task="pay")], "done", tools=[desk.as_tool("desk", "Ask.")], journal=journal
    )
    result = await boss.run("go", run_id="b")
    assert texts(result.messages) == ["go", "", "paid", "done"]
    assert await children(journal, "b:1:0") == [
        ("b:1:0:s1", "triage", "ended"),
        ("b:1:0:s2", "billing", "ended"),
    ]
    assert result.usage.input_tokens == 40


async def test_a_variant_of_a_team_hands_over_too() -> None:
    result = await pair().replace(model=ScriptedLLM([[TO_BILLING]])).run("pay me")
    assert (result.output, result.agent) == ("paid", "billing")
    changed = pair().replace(
        handoffs=[agent("refunds", "back")], model=ScriptedLLM([call("transfer_to_refunds")])
    )
    assert (await changed.run("pay me")).agent == "refunds"


@tool(effect="pure")
def look_up() -> str:
    """Look up."""
    return "found"


@pytest.mark.parametrize(
    "changes", [{"instructions": "Find out."}, {"tools": [look_up]}], ids=lambda one: next(iter(one))
)
async def test_a_variant_of_a_team_differs_from_it_on_the_same_journal_as_variants_of_other_agents_do(
    changes: dict[str, Any],
) -> None:
    triage = pair(journal=MemoryJournal())
    result = await triage.replace(**changes, model=ScriptedLLM([[TO_BILLING]])).run("pay me")
    assert (result.output, result.agent) == ("paid", "billing")
    assert (await triage.run("pay me")).agent == "billing"


async def test_a_variant_of_a_team_on_another_journal_joins_its_team_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    triage, made = pair(), []

    def counted(first: Agent[Any, Any], *parts: Any) -> Team:
        made.append(first.name)
        return joined(first, *parts)

    joined, journal = Team.of, MemoryJournal()
    monkeypatch.setattr(Team, "of", counted)
    variant = triage.replace(journal=journal, model=ScriptedLLM([[TO_BILLING]]), instructions="Find out.")
    assert made == ["triage"]
    result = await variant.run("pay me", run_id="p1")
    assert (result.output, result.agent) == ("paid", "billing")
    assert await children(journal, "p1") == [("p1:s1", "triage", "ended"), ("p1:s2", "billing", "ended")]


# ---- what the model of the next agent reads ----


class Refund(BaseModel):
    order: int


async def test_a_handoff_has_an_input_that_the_host_and_the_next_agent_read() -> None:
    refunds = agent("refunds", "refunded")
    triage = agent(
        "triage",
        [call("transfer_to_refunds", input={"order": 7})],
        handoffs=[handoff(refunds, description="For money back.", input=Refund)],
    )
    result = await triage.run("money back")
    assert result.handoffs[0].input == {"order": 7}
    (spec,) = requests(triage)[0].tools
    assert spec.description.endswith("For money back.")
    read = requests(refunds)[0].messages
    assert [one.arguments for message in read for one in message.tool_calls] == ['{"input": {"order": 7}}']


async def test_a_history_filter_says_what_the_next_agent_reads_and_the_conversation_keeps_all() -> None:
    billing = agent("billing", "paid")
    triage = agent(
        "triage",
        [TO_BILLING],
        handoffs=[handoff(billing, history=lambda messages: messages[:1])],
        journal=MemoryJournal(),
    )
    result = await triage.run("pay me", run_id="p")
    assert texts(requests(billing)[0].messages) == ["pay me"]
    assert texts(result.messages) == ["pay me", "", "billing takes over the conversation", "paid"]


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (lambda messages: messages[:2], "without its result"),
        (lambda messages: [messages[0], messages[2]], "without its call"),
        (lambda messages: [], "no message"),
        (lambda messages: 1 / 0, "ZeroDivisionError"),
        (lambda messages: ["text"], "not a Message"),
    ],
    ids=["call", "result", "empty", "raises", "type"],
)
async def test_a_history_filter_that_leaves_no_valid_history_fails_the_run_before_the_next_segment(
    kept: Any, says: str
) -> None:
    journal = MemoryJournal()
    triage = agent(
        "triage", [TO_BILLING], handoffs=[handoff(agent("billing"), history=kept)], journal=journal
    )
    result = await triage.run("pay me", run_id="p")
    assert result.outcome is Outcome.FAILED
    assert says in str(result.error)
    assert [name for name, _, _ in await children(journal, "p")] == ["p:s1"]


async def test_calls_of_the_first_agent_have_their_results_in_the_history_of_the_next() -> None:
    @tool(effect="pure")
    def look() -> str:
        return "order 7"

    billing = agent("billing", "paid")
    triage = agent("triage", [call("look"), TO_BILLING], handoffs=[billing], tools=[look])
    result = await triage.run("pay me")
    read = requests(billing)[0].messages
    assert not faults(read)
    assert texts(read) == ["pay me", "", "order 7", "billing takes over the conversation"]
    assert not faults(result.messages)


# ---- when a handoff is taken ----


async def test_of_two_handoffs_in_one_answer_none_is_taken_and_the_model_reads_why() -> None:
    refunds = agent("refunds", "never")
    triage = agent(
        "triage",
        [TO_BILLING, call("transfer_to_refunds")],
        [TO_BILLING],
        handoffs=[agent("billing", "paid"), refunds],
    )
    result = await triage.run("both")
    assert [one.to for one in result.handoffs] == ["billing"]
    read = [message.text for message in requests(triage)[1].messages if message.role == "tool"]
    assert len(read) == 2
    assert all("none of the handoffs of this answer was taken" in text for text in read)


@pytest.mark.parametrize("verdict", [False, Verdict(False, "open", 1, 0, "the desk is closed")])
async def test_a_guard_that_refuses_a_handoff_leaves_the_conversation_with_its_agent(verdict: Any) -> None:
    seen: list[RunContext] = []

    def when(context: RunContext) -> Any:
        seen.append(context)
        return verdict

    triage = agent("triage", [TO_BILLING], "sorry", handoffs=[handoff(agent("billing"), when=when)])
    result = await triage.run("pay", run_id="p", metadata={"vip": False})
    assert (result.output, result.agent, result.handoffs) == ("sorry", "triage", ())
    assert (seen[0].run_id, seen[0].metadata) == ("p:s1", {"vip": False})
    assert "cannot be handed over to billing now" in texts(result.messages)[2]


async def test_a_guard_that_returns_something_else_does_not_hand_over() -> None:
    wrong: Any = lambda _: "yes"  # noqa: E731 - of no type that a guard may have
    broken = handoff(agent("billing"), when=wrong)
    triage = agent("triage", [TO_BILLING], "sorry", handoffs=[broken])
    result = await triage.run("pay")
    assert (result.output, result.handoffs) == ("sorry", ())
    assert "returned str; give a Verdict or a bool" in texts(result.messages)[2]


async def test_other_calls_of_the_answer_finish_before_the_handoff() -> None:
    done: list[str] = []

    @tool(effect="irreversible")
    async def pay() -> str:
        await asyncio.sleep(0)
        done.append("pay")
        return "ok"

    billing = agent("billing", "paid")
    triage = agent("triage", [TO_BILLING, call("pay")], handoffs=[billing], tools=[pay])
    await triage.run("pay")
    assert done == ["pay"]
    assert texts(requests(billing)[0].messages)[-2:] == ["billing takes over the conversation", "ok"]


async def test_a_call_that_waits_for_a_person_is_decided_before_the_handoff() -> None:
    paid: list[int] = []

    @tool(effect="irreversible", approval=True)
    def pay() -> str:
        paid.append(1)
        return "ok"

    triage = pair([TO_BILLING, call("pay")], tools=[pay], journal=MemoryJournal())
    waiting = await triage.run("pay", run_id="p", wait="never")
    assert [(one.run_id, one.key) for one in waiting.questions] == [("p:s1", "1:1")]
    result = await triage.resume("p", answers={waiting.questions[0].id: True})
    assert (result.output, result.agent, paid) == ("paid", "billing", [1])


# ---- limits ----


def circle(answers: int = 20, **options: Any) -> Agent[Any, Any]:
    """Two agents that hand over to each other and do nothing else."""
    billing = agent("billing", *[[TO_TRIAGE]] * answers, handoffs=["triage"])
    return agent("triage", *[[TO_BILLING]] * answers, handoffs=[billing], **options)


async def test_agents_that_hand_over_in_a_circle_without_progress_are_stopped() -> None:
    result = await circle(limits=Limits(max_no_progress=2)).run("go")
    assert (result.outcome, result.reason) == (Outcome.NO_PROGRESS, "stalled")
    assert result.verdict is not None
    assert (result.verdict.guard, result.verdict.observed) == ("repeated_handoff", 2)
    assert len(result.handoffs) == 4, "each of the two handoffs was taken twice"


async def test_a_handoff_after_another_result_is_progress() -> None:
    number = iter(range(100))

    @tool(effect="pure")
    def look() -> int:
        return next(number)

    billing = agent("billing", *[[call("look"), TO_TRIAGE]] * 3, handoffs=["triage"], tools=[look])
    triage = agent(
        "triage",
        *[[call("look"), TO_BILLING]] * 3,
        "done",
        handoffs=[billing],
        tools=[look],
        limits=Limits(max_no_progress=1),
    )
    result = await triage.run("go")
    assert (result.output, len(result.handoffs)) == ("done", 6)


@pytest.mark.parametrize(("most", "taken"), [(1, 1), (3, 3)])
async def test_a_run_takes_exactly_its_maximum_of_handoffs(most: int, taken: int) -> None:
    result = await circle(limits=Limits(max_handoffs=most, max_no_progress=0)).run("go")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "handoffs")
    assert len(result.handoffs) == taken


async def test_segments_share_the_iterations_of_the_run_and_keep_their_own_limit() -> None:
    @tool(effect="pure")
    def look() -> str:
        return "nothing"

    def team(first: Limits, second: Limits) -> Agent[Any, Any]:
        billing = agent("billing", *[call("look")] * 20, tools=[look], limits=second)
        return agent("triage", [TO_BILLING], handoffs=[billing], limits=first)

    off = Limits(max_no_progress=0)
    for first, second, turns in ((4, 20, 4), (20, 2, 3)):
        limits = replace(off, max_iterations=first), replace(off, max_iterations=second)
        result = await team(*limits).run("go")
        assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "max_iterations")
        assert result.usage.input_tokens == turns * 10


async def test_tokens_of_all_segments_count_for_the_run() -> None:
    billing = agent("billing", *[call("nothing")] * 9)
    triage = agent("triage", [TO_BILLING], handoffs=[billing], limits=Limits(max_input_tokens=25))
    result = await triage.run("go")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "input_tokens")
    assert result.usage.input_tokens == 30


class TimeCase(NamedTuple):
    """A team whose models take their time, and whose journal takes some between two segments, in seconds."""

    first: int
    between: int
    second: int
    of_run: int
    own: int
    """Limit of billing; that of triage is the run's."""
    ends: tuple[str, str, int]
    """Outcome, agent that had the conversation, seconds."""
    segments: list[str]
    """Reason of each."""


TIMES = {
    "within all": TimeCase(4, 0, 4, 10, 8, ("completed", "billing", 8), ["handed_over", "none"]),
    "the run's, in the first segment": TimeCase(12, 0, 1, 10, 0, ("budget_exceeded", "triage", 10), ["time"]),
    "the run's, in the second": TimeCase(
        4, 0, 20, 10, 0, ("budget_exceeded", "billing", 10), ["handed_over", "time"]
    ),
    "the run's, before the member's own": TimeCase(
        4, 0, 20, 10, 8, ("budget_exceeded", "billing", 10), ["handed_over", "time"]
    ),
    "the member's own": TimeCase(
        4, 0, 20, 100, 5, ("budget_exceeded", "billing", 9), ["handed_over", "time"]
    ),
    "the member's own, of a run without": TimeCase(
        9, 0, 20, 0, 4, ("budget_exceeded", "billing", 13), ["handed_over", "time"]
    ),
    "the run's, between both": TimeCase(
        4, 7, 1, 10, 0, ("budget_exceeded", "billing", 11), ["handed_over", "time"]
    ),
}


@pytest.mark.parametrize("name", TIMES)
async def test_the_time_of_a_run_bounds_all_segments_and_each_has_its_own_limit_within_it(name: str) -> None:
    case = TIMES[name]
    clock, asked = FakeClock(), list[str]()

    class SlowBetween(MemoryJournal):
        async def create(self, run_id: str, *args: Any, **options: Any) -> Any:
            if run_id == "p:s2":
                await clock.sleep(case.between)
            return await super().create(run_id, *args, **options)

    journal = SlowBetween()
    runtime = Runtime(journal=journal, clock=clock, observers=())

    def member(name: str, answer: Any, seconds: int, most: int, **options: Any) -> Agent[Any, Any]:
        async def model(_: Request) -> Any:
            asked.append(name)
            await clock.sleep(seconds)
            return answer

        limits = Limits(max_seconds=most)
        return Agent(FunctionLLM(model), name=name, retry=NO_WAIT, runtime=runtime, limits=limits, **options)

    billing = member("billing", "paid", case.second, case.own)
    triage = member("triage", TO_BILLING, case.first, case.of_run, handoffs=[billing])
    began = clock.monotonic()
    work = asyncio.ensure_future(triage.run("go", run_id="p"))
    while not work.done():
        await clock.advance(1)
    result = await work
    assert (result.outcome.value, result.agent, round(clock.monotonic() - began)) == case.ends
    assert result.reason == ("none" if case.ends[0] == "completed" else "time")
    assert [head.reason async for head in journal.runs(parent_run_id="p")] == case.segments
    stored = await triage.runs.result("p")
    assert (stored.outcome, stored.reason, stored.messages) == (
        result.outcome,
        result.reason,
        result.messages,
    )


# ---- stop and follow ----


async def test_a_cancelled_run_cancels_its_segment_and_keeps_what_was_said() -> None:
    asked = asyncio.Event()

    async def model(_: Request) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    journal = MemoryJournal()
    billing: Agent[Any, Any] = Agent(FunctionLLM(model), name="billing", **SILENT)
    triage = agent("triage", [TO_BILLING], handoffs=[billing], journal=journal)
    work = asyncio.ensure_future(triage.run("go", run_id="p"))
    await asked.wait()
    await triage.cancel("p")
    result = await work
    assert (result.outcome, result.reason) == (Outcome.CANCELLED, "caller")
    assert (await journal.head("p:s2")).status == "ended"
    assert (await journal.head("p")).status == "ended"
    assert (await triage.resume("p")).messages == result.messages


async def test_what_a_stopped_segment_has_said_is_part_of_the_conversation() -> None:
    asked = asyncio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    billing = agent("billing", call("wait"), tools=[wait])
    triage = agent("triage", [TO_BILLING], handoffs=[billing], journal=MemoryJournal())
    work = asyncio.ensure_future(triage.run("go", run_id="p", conversation_id="c"))
    await asked.wait()
    await triage.cancel("p")
    result = await work
    assert [one.name for message in result.messages for one in message.tool_calls] == [
        "transfer_to_billing",
        "wait",
    ]
    assert not faults(result.messages)
    stored = (await triage.resume("p")).messages
    assert texts(stored) == texts(result.messages)


async def test_a_segment_that_fails_fails_the_run_with_its_error() -> None:
    result = await pair(billing=[RuntimeError("broken")]).run("go")
    assert result.outcome is Outcome.FAILED
    assert "broken" in str(result.error)
    assert result.agent == "billing"


async def test_a_stream_has_the_events_of_every_segment() -> None:
    triage = pair(journal=MemoryJournal())
    stream = triage.stream("pay me", run_id="p")
    kinds = [(type(event).__name__, event.run_id) async for event in stream]
    assert kinds[-1] == ("RunFinished", "p")
    assert [run for kind, run in kinds if kind == "RunFinished"] == ["p:s1", "p:s2", "p"]
    result = await stream.result()
    assert (result.output, result.agent) == ("paid", "billing")


# ---- conversations and memory ----


async def test_the_next_message_goes_to_the_last_agent_unless_the_first_is_wanted() -> None:
    journal = MemoryJournal()
    billing = agent("billing", "paid", "again")
    triage = agent("triage", [TO_BILLING], "hello", handoffs=[billing], journal=journal)
    await triage.run("pay me", run_id="1", conversation_id="c")
    second = await triage.run("and now?", run_id="2", conversation_id="c")
    assert (second.output, second.agent, second.handoffs) == ("again", "billing", ())
    assert texts(requests(billing)[1].messages)[0] == "pay me"
    third = await triage.run("hi", run_id="3", conversation_id="c", start="first")
    assert (third.output, third.agent) == ("hello", "triage")
    assert texts(third.messages)[-3:] == ["again", "hi", "hello"]


async def test_a_conversation_from_before_the_handoffs_continues() -> None:
    journal = MemoryJournal()
    alone = agent("triage", "one", journal=journal, instructions="You triage.")
    await alone.run("first", run_id="1", conversation_id="c")
    triage = pair(journal=journal, instructions="You triage.")
    result = await triage.run("second", run_id="2", conversation_id="c")
    assert texts(result.messages)[:3] == ["first", "one", "second"]
    assert texts(requests(triage)[0].messages)[:2] == ["You triage.", "first"]


async def test_memory_is_read_and_written_once_for_the_whole_run() -> None:
    memory = Notebook(Message("user", "known"))
    triage = pair(memory=memory)
    result = await triage.run("pay me", run_id="p")
    assert [key for key, _ in memory.asked] == ["p"]
    assert [(key, texts(said)) for key, said in memory.stored] == [("p", ["pay me", "paid"])]
    assert texts(requests(triage)[0].messages) == ["known", "pay me"]
    assert texts(result.messages)[0] == "pay me"


# ---- deps ----


@dataclass
class Bank:
    name: str


async def test_an_agent_without_deps_has_those_of_the_run() -> None:
    seen: list[str] = []

    @tool(effect="pure")
    def look(context: ToolContext[Bank]) -> str:
        seen.append(context.deps.name)
        return "ok"

    def team(**options: Any) -> Agent[Any, Any]:
        billing = agent("billing", call("look"), "paid", tools=[look])
        return agent("triage", [TO_BILLING], handoffs=[billing], **options)

    await team(deps=Bank("own")).run("go")
    await team().run("go", deps=Bank("of the run"))
    assert seen == ["own", "of the run"]
    with pytest.raises(ConfigError, match="reads deps"):
        await team().run("go")


# ---- refused early ----


class Other(BaseModel):
    text: str


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"handoffs": "billing"}, "give a list"),
        ({"handoffs": [7]}, "a handoff is 7"),
        ({"handoffs": [Agent(ScriptedLLM([]), **SILENT)]}, "has no name"),
        ({"name": None, "handoffs": [agent("billing")]}, "has no name"),
        ({"handoffs": [agent("billing"), agent("billing")]}, "two handoffs of one agent are to 'billing'"),
        ({"handoffs": [agent("triage")]}, "are named 'triage'"),
        ({"handoffs": [agent("billing", output_type=Other)]}, "different types"),
    ],
    ids=["text", "number", "nameless", "first", "twice", "same", "types"],
)
async def test_a_team_that_cannot_work_is_refused_when_it_is_made(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Agent(ScriptedLLM([]), **{"name": "triage", **SILENT, **options})


@pytest.mark.parametrize("name", ["when", "history"])
def test_an_option_of_a_handoff_that_is_no_function_is_refused(name: str) -> None:
    options: dict[str, Any] = {name: 7}
    with pytest.raises(ConfigError, match=f"{name} of the handoff to 'billing' is 7"):
        handoff("billing", **options)


async def test_a_handoff_to_an_unknown_name_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="no member of the team"):
        await agent("triage", handoffs=["nobody"]).run("go")


async def test_an_unknown_place_of_a_new_message_is_refused() -> None:
    wrong: Any = "second"
    with pytest.raises(ConfigError, match="possible: 'last', 'first'"):
        await pair().run("go", start=wrong)


# ---- versions ----


async def test_open_runs_continue_when_an_agent_gets_handoffs() -> None:
    journal = MemoryJournal()
    left = await _left(agent("triage", call("ask"), "answer", tools=[ask], journal=journal))
    triage = pair("never", tools=[ask], journal=journal)
    result = await triage.resume("p", answers={left: True})
    assert result.outcome is Outcome.COMPLETED
    assert (await journal.head("p")).graph == LLM_LOOP.name


async def test_open_runs_continue_when_an_agent_loses_its_handoffs() -> None:
    journal = MemoryJournal()
    left = await _left(pair(call("ask"), version="1", tools=[ask], journal=journal))
    assert (await journal.head("p:s1")).fingerprint == LLM_LOOP_WITH_HANDOFFS.fingerprint
    bare = agent("triage", "answer", handoffs=[], version="2", tools=[ask], journal=journal)
    result = await bare.resume("p", answers={left: True})
    assert (result.output, result.agent) == ("answer", "triage")


async def test_a_segment_of_an_agent_that_gets_handoffs_is_migrated() -> None:
    journal, asked = MemoryJournal(), asyncio.Event()

    async def model(_: Request) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    def team(billing: Agent[Any, Any], version: str) -> Agent[Any, Any]:
        return agent("triage", [TO_BILLING], handoffs=[billing], journal=journal, version=version)

    before = team(Agent(FunctionLLM(model), name="billing", **SILENT), "1")
    work = asyncio.ensure_future(before.run("go", run_id="p"))
    await asked.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    result = await team(agent("billing", "answer", handoffs=["triage"]), "2").resume("p")
    assert (result.output, result.agent) == ("answer", "billing")
    kinds = [record.kind for record in await journal.load("p:s2")]
    assert kinds.count("migrated") == 1


async def test_a_run_waits_for_a_member_that_is_missing() -> None:
    journal = MemoryJournal()
    billing = agent("billing", call("ask"), tools=[ask])
    await _left(agent("triage", [TO_BILLING], handoffs=[billing], journal=journal, version="1"))
    late = agent("triage", handoffs=[agent("refunds")], journal=journal, version="2")
    (run,) = await late.hosting.open_runs()
    assert (run.unattended, run.foreign) == (False, True)
    assert "waits for its agent 'billing'" in run.will
    with pytest.raises(OtherAgent, match="billing"):
        await late.resume("p")
    assert (await journal.head("p")).status in {"open", "parked"}


@tool(effect="irreversible", approval=True)
def ask() -> str:
    """Ask."""
    return "yes"


def paying() -> tuple[Any, list[str]]:
    """Return a tool that asks a person, and the payments that it made."""
    paid: list[str] = []

    @tool(effect="irreversible", approval=True)
    def pay(to: str) -> str:
        """Pay."""
        paid.append(to)
        return "paid"

    return pay, paid


@pytest.mark.parametrize("answered", [False, True], ids=["open question", "answered question"])
async def test_an_agent_that_got_handoffs_resumes_its_waiting_run_and_an_approval_from_before_counts(
    *, answered: bool
) -> None:
    pay, paid = paying()
    journal = MemoryJournal()
    script = [call("pay", to="shop")]
    before = agent("triage", script, "done", tools=[pay], journal=journal, version="1")
    waiting: Any = await before.run("go", run_id="p", wait="never")
    (question,) = await before.pending("p")
    if answered:
        await before.approve("p", digest=question.digest, by="ann")
    after = agent(
        "triage", "done", tools=[pay], journal=journal, version="2", handoffs=[agent("billing", "billed")]
    )
    # A resumption that nobody waits for returns the same question; the digest that was seen is still its digest.
    result: Any = await after.resume("p", wait="never")
    assert result.waiting is not answered
    if not answered:
        assert paid == []
        assert [(one.id, one.digest) for one in result.questions] == [
            (one.id, one.digest) for one in waiting.questions
        ]
        await after.approve("p", digest=question.digest, by="ann")
        result = await after.resume("p", wait="never")
    assert (result.outcome, paid) == (Outcome.COMPLETED, ["shop"])
    kept = [record.body for record in await journal.load("p") if record.kind == "approval"]
    assert [(one["digest"], one["by"]) for one in kept] == [(question.digest, "ann")]


@pytest.mark.parametrize("answered", [False, True], ids=["open question", "answered question"])
@pytest.mark.parametrize("gets", [True, False], ids=["gets handoffs", "loses handoffs"])
async def test_a_segment_that_migrates_asks_again_and_no_answer_from_before_counts(
    *, gets: bool, answered: bool
) -> None:
    """The digest covers the graph: what was approved in another machine is asked again, as the run says."""
    pay, paid = paying()
    journal = MemoryJournal()

    def team(version: str, *script: Any, hands_over: bool) -> Agent[Any, Any]:
        options: dict[str, Any] = {"handoffs": ["triage"]} if hands_over else {}
        billing = agent("billing", *script, tools=[pay], **options)
        return agent("triage", [TO_BILLING], handoffs=[billing], journal=journal, version=version)

    before = team("1", call("pay", to="shop"), hands_over=not gets)
    await before.run("go", run_id="p", wait="never")
    (old,) = await before.pending("p")
    if answered:
        await before.approve("p", digest=old.digest, by="ann")
    after = team("2", "done", hands_over=gets)
    result: Any = await after.resume("p", wait="never")
    assert (result.waiting, paid) == (True, [])
    (new,) = await after.pending("p")
    assert (new.run_id, new.key, new.arguments, new.expires_at) == (
        old.run_id,
        old.key,
        old.arguments,
        old.expires_at,
    )
    assert new.digest != old.digest
    with pytest.raises(AnswerRefused):
        await after.approve("p:s2", digest=old.digest, by="ann")
    kinds = [record.kind for record in await journal.load("p:s2")]
    assert (kinds.count("migrated"), kinds.count("asked"), kinds.count("approval")) == (1, 2, 0)
    await after.approve("p", digest=new.digest, by="bob")
    result = await after.resume("p", wait="never")
    assert (result.outcome, paid) == (Outcome.COMPLETED, ["shop"])
    kept = [record.body for record in await journal.load("p:s2") if record.kind == "approval"]
    assert [(one["digest"], one["by"]) for one in kept] == [(new.digest, "bob")]


async def _left(team: Agent[Any, Any]) -> str:
    """Leave run `p` of a team while it waits for a person; return the id of the question."""
    waiting: Any = await team.run("go", run_id="p", wait="never")
    (question,) = waiting.questions
    identity: str = question.id
    return identity


# ---- what an operator sees ----


async def test_handoffs_are_counted_for_the_declared_pairs_alone() -> None:
    registry = CollectorRegistry()
    triage = circle(observers=[Metrics(registry)], limits=Limits(max_handoffs=3, max_no_progress=0))

    def count(source: str, to: str) -> float | None:
        return registry.get_sample_value("orchestrator_handoffs_total", {"agent": source, "to": to})

    assert (count("triage", "billing"), count("billing", "triage")) == (0, 0)
    await triage.run("go")
    assert (count("triage", "billing"), count("billing", "triage")) == (2, 1)
    assert count("billing", "billing") is None


@pytest.mark.parametrize("reason", ["handed_over", "handoffs"])
def test_endings_of_handoffs_exist_at_0_for_the_agents_alone_that_can_hand_over(reason: str) -> None:
    registry = CollectorRegistry()
    observers = [Metrics(registry)]
    billing = agent("billing", "paid", observers=observers)
    agent("triage", [TO_BILLING], handoffs=[billing], observers=observers)
    samples = [one for family in registry.collect() for one in family.samples]
    ends = [one for one in samples if one.name == "orchestrator_runs_completed_total"]
    assert {one.labels["agent"] for one in ends} == {"billing", "triage"}
    able = {(one.labels["machine"], one.labels["agent"]) for one in ends if one.labels["reason"] == reason}
    assert able == {("llm_loop", "triage"), ("team", "triage")}


async def test_facts_of_a_segment_name_its_agent_and_its_run() -> None:
    facts = Facts()
    billing = agent("billing", "paid", observers=[facts])
    await agent("triage", [TO_BILLING], handoffs=[billing], observers=[facts]).run("go", run_id="p")
    begun = [(fact.run_id, fact.parent_run_id, fact.agent) for fact in facts.of(RunStarted)]
    assert begun == [("p", None, "triage"), ("p:s1", "p", "triage"), ("p:s2", "p", "billing")]
