"""What goes wrong with handoffs in other libraries, by their own bug reports, and the table of cases of one answer.

Each test names the report that it holds, as repository and number. `tests/providers/test_handoff_history.py` has those
about the histories that vendors refuse, `test_guardrails.py` those about guards of the agent that takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from orchestrator.errors import ConfigError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.live_event import TextDelta
from orchestrator.llm.message import Message, Request, Response
from orchestrator.llm.run_event import RunCreated, RunFinished, ToolFinished, ToolStarted
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.team.handoff import handoff
from orchestrator.tools.spec import tool
from orchestrator_guards import Verdict
from tests.runtime.stage import NO_WAIT, Notebook, faults

SILENT: dict[str, Any] = {"observers": (), "retry": NO_WAIT}
TO_BILLING, TO_REFUNDS = call("transfer_to_billing"), call("transfer_to_refunds")


def agent(name: str, *script: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedLLM(script), name=name, **{**SILENT, **options})


def requests(one: Agent[Any, Any]) -> list[Request]:
    found: list[Request] = one._deps.llm.requests  # type: ignore[attr-defined]
    return found


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "order 7"


# ---- one answer: the table of the guide ----


class Order(BaseModel):
    number: int


def of_order(number: object) -> Any:
    return call("transfer_to_refunds", input={"number": number})


class Case(NamedTuple):
    """An answer of triage, who can hand over to billing, to refunds with an Order, and to sales, which is closed."""

    answer: Any
    to: list[str]
    """The handoffs of the run. If there is none, triage answers next, with `sorry`."""
    results: list[str]
    """What the results of the answer's calls contain, in their order."""


CASES = {
    "one handoff": Case([TO_BILLING], ["billing"], ["billing takes over"]),
    "a text beside it": Case(Response("One moment.", (TO_BILLING,)), ["billing"], ["billing takes over"]),
    "a call before it": Case([call("look"), TO_BILLING], ["billing"], ["order 7", "billing takes over"]),
    "a call behind it": Case([TO_BILLING, call("look")], ["billing"], ["billing takes over", "order 7"]),
    "a call that fails": Case(
        [TO_BILLING, call("fail")], ["billing"], ["billing takes over", "it is broken"]
    ),
    "a call of no tool": Case([TO_BILLING, call("nothing")], ["billing"], ["billing takes over", "nothing"]),
    "two agents": Case([TO_BILLING, of_order(7)], [], ["none of the handoffs"] * 2),
    "the same twice": Case([TO_BILLING, TO_BILLING], ["billing"], ["billing takes over"] * 2),
    "the same twice, with equal inputs": Case(
        [of_order(7), of_order("7")], ["refunds"], ["refunds takes"] * 2
    ),
    "the same twice, with other inputs": Case([of_order(7), of_order(8)], [], ["none of the handoffs"] * 2),
    "an invalid input": Case([of_order("seven")], [], ["number"]),
    "a guard refuses": Case([call("transfer_to_sales")], [], ["cannot be handed over to sales now"]),
    "one that a guard refuses, and another": Case(
        [call("transfer_to_sales"), TO_BILLING], [], ["none of the handoffs"] * 2
    ),
    "an unknown agent": Case([call("transfer_to_nobody")], [], ["transfer_to_nobody"]),
}


@tool(effect="pure")
def fail() -> str:
    """Fail."""
    raise ValueError("it is broken")


def closed(_: object) -> Verdict:
    return Verdict(False, "open", 0, 1, "sales opens at nine")


# langgraph-swarm-py 26, 69, 83: a handoff beside other calls leaves calls without results, or loses their results.
# semantic-kernel 12756, openai-agents-js 1122: of several handoffs the last, or the first, is taken.
# livekit/agents 6280: the same handoff twice in one answer aborts both.
# openai-agents-python 238, openai-agents-js 1239: a handoff to an agent that does not exist ends the run.
@pytest.mark.parametrize("name", CASES)
async def test_each_case_of_an_answer_with_handoffs(name: str) -> None:
    case = CASES[name]
    others = [
        agent("billing", "paid"),
        handoff(agent("refunds", "paid"), input=Order),
        handoff(agent("sales", "never"), when=closed),
    ]
    triage = agent("triage", case.answer, "sorry", handoffs=others, tools=[look, fail])
    result = await triage.run("pay me")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "paid" if case.to else "sorry")
    assert [made.to for made in result.handoffs] == case.to
    read = [message.text for message in result.messages if message.role == "tool"]
    assert len(read) == len(case.results)
    assert all(part in text for part, text in zip(case.results, read, strict=True)), read
    assert not faults(result.messages)


# livekit/agents 7320: the other tool of the answer finishes last, and the handoff is dropped.
@pytest.mark.parametrize("slow", ["handoff first", "handoff last"])
async def test_the_order_in_which_calls_finish_does_not_decide_about_a_handoff(slow: str) -> None:
    started = asyncio.Event()

    @tool(effect="pure")
    async def late() -> str:
        """Finish after the handoff has been accepted."""
        started.set()
        for _ in range(20):
            await asyncio.sleep(0)
        return "order 7"

    calls = [TO_BILLING, call("late")] if slow == "handoff first" else [call("late"), TO_BILLING]
    triage = agent("triage", calls, handoffs=[agent("billing", "paid")], tools=[late])
    result = await triage.run("pay me")
    assert started.is_set()
    assert (result.output, [made.to for made in result.handoffs]) == ("paid", ["billing"])


# openai-agents-python 238: an agent wants to hand over to itself.
async def test_an_agent_that_hands_over_to_itself_is_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="agent 'triage' hands over to itself"):
        agent("triage", handoffs=["triage"])


# ---- what the next agent reads, and what it can do ----


# autogen 6859: the next agent calls tools of the agent before, which it reads in the history.
async def test_an_agent_that_took_over_has_its_own_tools_alone() -> None:
    ran: list[str] = []

    @tool(effect="irreversible")
    def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid once"

    billing = agent("billing", [call("pay")], "I cannot pay.")
    triage = agent("triage", [call("pay"), TO_BILLING], handoffs=[billing], tools=[pay])
    result = await triage.run("pay me")
    assert (result.output, ran) == ("I cannot pay.", ["pay"])
    assert [spec.name for spec in requests(billing)[0].tools] == []
    assert result.messages[-2].is_error


# google/adk-python 5238, 2073: the message of the user does not reach the agent that takes over.
# microsoft/agent-framework 4695, openai-agents-python 2171: it reads each message twice.
async def test_the_next_agent_reads_every_message_once_also_with_a_memory_and_a_conversation() -> None:
    billing = agent("billing", "paid", "again")
    triage = agent(
        "triage",
        [call("look"), TO_BILLING],
        handoffs=[billing],
        tools=[look],
        memory=Notebook(Message("user", "known")),
        journal=MemoryJournal(),
    )
    await triage.run("pay me", conversation_id="c")
    await triage.run("and now?", conversation_id="c")
    first = ["pay me", "", "order 7", "billing takes over the conversation"]
    assert texts(requests(billing)[0].messages) == ["known", *first]
    assert texts(requests(billing)[1].messages) == ["known", *first, "paid", "and now?"]


async def test_instructions_and_options_of_an_agent_do_not_reach_another() -> None:
    billing = agent("billing", [call("transfer_to_triage")], instructions="You bill.", handoffs=["triage"])
    triage = agent(
        "triage",
        [TO_BILLING],
        "bye",
        instructions="You triage.",
        handoffs=[billing],
        params={"temperature": 1},
        journal=MemoryJournal(),
    )
    result = await triage.run("hi", run_id="p", params={"seed": 7}, instructions="You triage today.")
    first, last = requests(triage)
    for request in (first, last):
        assert texts(request.messages).count("You triage today.") == 1
        assert dict(request.params) == {"temperature": 1, "seed": 7}
    (second,) = requests(billing)
    assert [text for text in texts(second.messages) if text.startswith("You")] == ["You bill."]
    assert dict(second.params) == {}
    assert not any(text.startswith("You") for text in texts(result.messages))


# ---- the next message ----


# google/adk-python 1807: an agent from earlier in the conversation answers, not the one that had it last.
# microsoft/agent-framework 1972: an agent that stops without a handoff loses the conversation.
async def test_the_next_message_goes_to_the_last_of_three_agents_also_after_a_failed_run() -> None:
    refunds = agent("refunds", "one", RuntimeError("down"), "three", handoffs=["triage"])
    billing = agent("billing", [TO_REFUNDS], handoffs=[refunds])
    triage = agent("triage", [TO_BILLING], handoffs=[billing], journal=MemoryJournal())
    first = await triage.run("refund", conversation_id="c")
    assert (first.agent, first.output) == ("refunds", "one")
    assert (await triage.run("and?", conversation_id="c")).outcome is Outcome.FAILED
    third = await triage.run("hello?", conversation_id="c")
    assert (third.agent, third.output) == ("refunds", "three")
    assert (len(requests(triage)), len(requests(billing))) == (1, 1)


# ---- streams ----


# openai-agents-js 202, openai-agents-python 5072, openai/swarm 105: events after the handoff name the wrong agent.
# openai-agents-python 4144, 1862: a handoff is in the stream twice.
async def test_a_stream_has_each_handoff_once_between_the_events_of_both_agents() -> None:
    billing = agent("billing", "It is paid.")
    handing = Response("One moment.", (TO_BILLING,))
    triage = agent("triage", handing, handoffs=[billing], journal=MemoryJournal())
    events = [event async for event in triage.stream("pay me", run_id="p")]
    kinds = (RunCreated, RunFinished, ToolStarted, ToolFinished)
    order = [(event.run_id, type(event).__name__) for event in events if isinstance(event, kinds)]
    assert order == [
        ("p", "RunCreated"),
        ("p:s1", "RunCreated"),
        ("p:s1", "ToolStarted"),
        ("p:s1", "ToolFinished"),
        ("p:s1", "RunFinished"),
        ("p:s2", "RunCreated"),
        ("p:s2", "RunFinished"),
        ("p", "RunFinished"),
    ]
    begun = {event.run_id: event.agent for event in events if isinstance(event, RunCreated)}
    assert begun == {"p": "triage", "p:s1": "triage", "p:s2": "billing"}
    said: dict[str, str] = {}
    for event in events:
        if isinstance(event, TextDelta):
            said[event.run_id] = said.get(event.run_id, "") + event.text
    assert said == {"p:s1": "One moment.", "p:s2": "It is paid."}


# ---- loops ----


# autogen 5831, conductor-oss/conductor 1279: agents hand over to each other for ever.
async def test_agents_that_hand_over_to_each_other_for_ever_cost_a_bounded_number_of_requests() -> None:
    def team(limits: Limits) -> Agent[Any, Any]:
        back = FunctionLLM(lambda _: call("transfer_to_triage"))
        billing: Agent[Any, Any] = Agent(back, name="billing", handoffs=["triage"], **SILENT)
        there = FunctionLLM(lambda _: TO_BILLING)
        return Agent(there, name="triage", handoffs=[billing], limits=limits, **SILENT)

    result = await team(Limits()).run("go")
    assert (result.outcome, result.reason) == (Outcome.NO_PROGRESS, "stalled")
    without_guard = await team(Limits(max_no_progress=0)).run("go")
    assert (without_guard.outcome, without_guard.reason) == (Outcome.BUDGET_EXCEEDED, "handoffs")
    assert len(without_guard.handoffs) == Limits().max_handoffs


# openai-agents-python 568: the text beside a handoff is the answer, and the handoff is lost.
async def test_the_text_beside_a_handoff_is_part_of_the_conversation_and_not_its_output() -> None:
    triage = agent("triage", Response("One moment.", (TO_BILLING,)), handoffs=[agent("billing", "paid")])
    result = await triage.run("pay me")
    assert texts(result.messages) == ["pay me", "One moment.", "billing takes over the conversation", "paid"]
    assert result.output == "paid"
