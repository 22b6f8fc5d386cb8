"""A tool that has returned has run, whatever becomes of its result: it is never reported as failed."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from orchestrator.console.run_page import RunSections
from orchestrator.engines.served_agent import DurableAgent
from orchestrator.errors import LLMError, ResultUnreadable, StoreDown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import ToolExecution
from orchestrator.kernel.journal import Draft, Lease
from orchestrator.llm.message import Request, ToolCall
from orchestrator.llm.run_event import ToolFinished
from orchestrator.machines.llm_loop.limits import OFF
from orchestrator.machines.timeline import Kind as SpanKind
from orchestrator.providers.mcp.serving import RunAnswer
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.rlm import Rlm
from orchestrator.runtime.backtest.backtest import read_trace
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.runs.runs import Runs
from orchestrator.telemetry import Metrics, TransitionLog
from orchestrator.testing import assert_replays
from orchestrator.tools.result import RETURNED, ToolResult
from orchestrator.tools.spec import ToolContext, tool
from orchestrator.tools.tool_set import ToolSet
from tests.result_kinds import KINDS, SURROGATE, Kind, Receipt, Scan, secret
from tests.runtime.stage import Facts, agent, until
from tests.telemetry.sampling import sampled
from tests.tiers import examples

each = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


@tool
def pay() -> object:
    """Pay."""
    return Receipt()


@tool
def log_in() -> object:
    """Log in."""
    return secret()


def assert_shown(kind: Kind, content: str) -> None:
    """Assert that the model reads the result, or that the tool ran and why its result cannot be shown."""
    if kind.text is not None:
        assert content[: max(100, len(kind.text))] == kind.text or content.startswith(kind.text)
        return
    said = json.loads(content)
    assert said["ran"] is True
    assert said["notice"].startswith("the tool ran, but its result cannot be shown: ")
    assert said["notice"].endswith("Do not repeat the call for that reason.")
    assert "error" not in said


@each
@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "sync"])
async def test_a_tool_set_gives_the_result_or_says_that_the_tool_ran(kind: Kind, in_thread: bool) -> None:
    async def pay() -> object:
        return kind.make()

    def pay_in_thread() -> object:
        return kind.make()

    tools = ToolSet([tool(name="pay")(pay_in_thread if in_thread else pay)])
    (result,) = await tools.execute_all([ToolCall("1", "pay")], lambda _, at: ToolContext("r", str(at)))
    assert result.outcome == ("ok" if kind.text is not None else "result_unreadable")
    assert not result.is_error
    assert_shown(kind, result.content)
    assert (result.returned or {}).get("type", "") == kind.type


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.binary(max_size=4),
    st.text(max_size=4),
    st.text(st.characters(categories=["Cs"]), min_size=1, max_size=2),
    st.sampled_from([Receipt(), Receipt, range(2), ValueError("a"), 1j, ..., dt.date(2026, 3, 1)]),
    st.builds(iter, st.just([1])),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers(), st.just("\udce9")), inner, max_size=3),
        st.builds(Scan, inner),
    ),
    max_leaves=8,
)


@settings(max_examples=examples(200), deadline=None)
@given(VALUES)
async def test_no_value_is_a_failure_and_each_result_can_be_stored(value: object) -> None:
    tools = ToolSet([tool(name="pay")(lambda: value)])
    (result,) = await tools.execute_all([ToolCall("1", "pay")], lambda _, at: ToolContext("r", str(at)))
    assert result.outcome in RETURNED
    orjson.dumps({"content": result.content, "returned": result.returned})


@each
async def test_the_call_is_recorded_as_done_and_never_counted_as_an_error(kind: Kind) -> None:
    facts, registry, lines, journal = Facts(), CollectorRegistry(), StringIO(), MemoryJournal()

    @tool
    def pay() -> object:
        return kind.make()

    observers = [facts, Metrics(registry), TransitionLog(lines)]
    result = await agent([call("pay"), "done"], [pay], journal=journal, observers=observers).run("go")
    assert (result.outcome, result.output) == ("completed", "done")
    message = result.messages[2]
    assert not message.is_error
    assert_shown(kind, message.text)

    outcome = "ok" if kind.text is not None else "result_unreadable"
    [done] = [record.body for record in await journal.load(result.run_id) if record.kind == "done"]
    assert (done["outcome"], done["content"]) == (outcome, message.text)
    assert done.get("returned", {}).get("type", "") == kind.type
    assert len(done.get("returned", {}).get("repr", "")) <= 1_000
    assert [fact.outcome for fact in facts.of(ToolExecution)] == [outcome]
    for name in ("result_unreadable", "error"):
        assert sampled(registry, "tool_calls_total", tool="pay", outcome=name) == float(name == outcome)
    logged = [line for line in map(json.loads, lines.getvalue().splitlines()) if "tool.call" in line.values()]
    assert [line["outcome"] for line in logged] == ([outcome] if kind.text is None else [])


async def test_the_stored_repr_has_no_secret_and_keeps_what_identifies_the_effect() -> None:
    journal = MemoryJournal()
    result = await agent([[call("pay"), call("log_in")], "done"], [pay, log_in], journal=journal).run("go")
    done = [record.body for record in await journal.load(result.run_id) if record.kind == "done"]
    assert [body["returned"] for body in done] == [
        {"type": "Receipt", "repr": "Receipt(number=7)"},
        {"type": "Client", "repr": "Client([redacted] host='a')"},
    ]
    assert all("7" not in message.text and "hunter2" not in message.text for message in result.messages)
    details = await Runs(journal).get(result.run_id)
    assert {story.outcome for story in details.story.calls.values()} == {"result_unreadable"}


async def test_every_reader_of_the_journal_knows_the_outcome_and_shows_no_failure() -> None:
    journal = MemoryJournal()
    await agent([call("pay"), "done"], [pay], journal=journal).run("go", run_id="r")
    await assert_replays(journal, "r")
    runs = Runs(journal)
    finished = [event async for event in runs.events("r") if isinstance(event, ToolFinished)]
    assert [event.outcome for event in finished] == ["result_unreadable"]
    line = await runs.timeline("r")
    assert [(span.kind, span.note) for span in line.spans if span.name == "pay"] == [
        (SpanKind.TOOL, "result_unreadable")
    ]
    page = RunSections.of(await runs.get("r"), await journal.load("r"), line, 0.0)
    assert [(row["tool"], row["calls"], row["failed"]) for row in page.tools()] == [("pay", 1, 0)]
    trace = await read_trace(journal, await journal.head("r"))
    assert not trace.problem


async def test_a_model_that_repeats_failed_calls_pays_once() -> None:
    paid: list[int] = []

    @tool
    def pay() -> object:
        paid.append(1)
        return Receipt()

    def model(request: Request) -> Any:
        last = request.messages[-1]
        return call("pay") if last.role == "user" or '"error"' in last.text or last.is_error else "done"

    result = await agent(FunctionLLM(model), [pay]).run("go")
    assert (result.outcome, paid) == ("completed", [1])


async def test_it_is_no_error_for_the_limits_on_errors_and_no_retry() -> None:
    script = [[call("pay"), call("pay")], call("pay"), call("pay"), "done"]
    limits = replace(OFF, max_tool_errors=1, max_iterations=9)
    result = await agent(script, [pay], limits=limits).run("go")
    assert (result.outcome, result.output) == ("completed", "done")


async def test_a_tool_says_itself_that_it_ran_without_a_readable_result() -> None:
    @tool
    def pay() -> str:
        raise ResultUnreadable("the receipt is no XML", b"<receipt")

    journal = MemoryJournal()
    result = await agent([call("pay"), "done"], [pay], journal=journal).run("go")
    assert "cannot be shown: the receipt is no XML. Do not repeat" in result.messages[2].text
    [done] = [record.body for record in await journal.load(result.run_id) if record.kind == "done"]
    assert (done["outcome"], done["returned"]) == (
        "result_unreadable",
        {"type": "bytes", "repr": "b'<receipt'"},
    )


async def test_a_compensation_whose_result_cannot_be_shown_has_happened() -> None:
    spec = tool(name="book", effect="compensable", undo=log_in.call)(lambda: "booked")
    tools = ToolSet([spec])
    await tools.take_back(ToolCall("1", "book"), 0, lambda _, at: ToolContext("r", str(at)))


# ---- the other ways to a result ----


@each
async def test_tools_mode_gives_the_result_or_says_that_the_tool_ran(kind: Kind) -> None:
    @tool
    def pay() -> object:
        return kind.make()

    facts = Facts()
    llm = ScriptedLLM([call("pay"), "done"])
    done = await Rlm(llm, mode="tools", tools=[pay], observers=[facts]).run("go")
    assert (done.outcome, done.output) == ("completed", "done")
    message = next(message for message in done.messages if message.role == "tool")
    assert not message.is_error
    assert_shown(kind, message.text)
    outcome = "ok" if kind.text is not None else "result_unreadable"
    assert [fact.outcome for fact in facts.of(ToolExecution)] == [outcome]


outputs = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name)
        for name, kind in KINDS.items()
        if name != "a proxy that raises" and "10 MB" not in name
    ],
)
"""The loop itself looks at the class of an output."""


class Ending:
    """A host that gives the run another output."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    async def before_finalize(self, _run: object, _output: object) -> object:
        return self.kind.make()


@outputs
async def test_a_run_whose_output_cannot_be_stored_has_ended(kind: Kind) -> None:
    journal = MemoryJournal()
    ended = agent(["answer"], hooks=[Ending(kind)], journal=journal)
    result = await ended.run("go", run_id="r")
    assert result.outcome == "completed"
    body = (await journal.load("r"))[-1].body
    read = await Runs(journal).result("r")
    assert read.outcome == "completed"
    assert (await ended.resume("r")).output == read.output
    if "returned" in body:
        assert (body["output"], body["returned"]["type"], read.output) == (
            None,
            type(result.output).__name__,
            None,
        )
    else:
        assert kind.text is None or read.output is not None or result.output is None


@outputs
async def test_a_child_agent_whose_output_has_no_text_has_run(kind: Kind) -> None:
    child = Agent(ScriptedLLM(["found"]), observers=(), hooks=[Ending(kind)], name="child")
    parent = agent([call("dig", task="a"), "done"], [child.as_tool("dig", "Dig.")])
    result = await parent.run("go")
    assert (result.outcome, result.output) == ("completed", "done")
    assert not result.messages[2].is_error


@outputs
async def test_an_agent_that_is_served_says_that_its_run_has_ended_and_how(kind: Kind) -> None:
    async def progress(_: str) -> None: ...

    async def answer(script: list[Any]) -> RunAnswer:
        served = DurableAgent(agent(script, hooks=[Ending(kind)]), "dig", "Dig.")
        answer = await served.wait(await served.start("go"), progress)
        assert isinstance(answer, RunAnswer)
        return answer

    completed, failed = await answer(["answer"]), await answer([LLMError("no such key", kind="auth")])
    assert not completed.is_error
    assert completed.data["outcome"] == "completed"
    assert failed.is_error
    assert failed.text == "the run ended as failed (llm_error, auth): no such key"


class FullDisk(MemoryJournal):
    """A store whose disk is full while `full` is set."""

    full = False

    def append(self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None) -> None:
        if self.full:
            raise StoreDown("the disk is full")
        super().append(lease, drafts, blobs)


async def test_a_served_run_that_could_not_go_on_is_resumed_when_its_client_asks_again() -> None:
    async def progress(_: str) -> None: ...

    async def answer(request: Request) -> Any:
        await asked.wait()
        return "Paid." if request.messages[-1].role == "tool" else call("pay")

    journal, asked = FullDisk(), asyncio.Event()
    served = DurableAgent(agent(FunctionLLM(answer), [pay], journal=journal), "till", "Pays.")
    run_id = await served.start("go")
    outcomes = []
    for journal.full in (True, False, True):  # the last one only reads the result
        asked.set()
        end = await served.wait(run_id, progress)
        assert isinstance(end, RunAnswer)
        outcomes.append((end.data["outcome"], end.data["reason"]))
    assert outcomes == [("failed", "journal_error"), ("completed", "none"), ("completed", "none")]


async def test_a_served_run_whose_client_never_returns_is_kept_by_the_journal_alone() -> None:
    async def progress(_: str) -> None: ...

    served = DurableAgent(agent(["answer"]), "dig", "Dig.")
    run_id = await served.start("go")
    await until(lambda: not served._live)
    end = await served.wait(run_id, progress)
    assert isinstance(end, RunAnswer)
    assert (end.text, end.data["run_id"]) == ("answer", run_id)


# ---- hooks ----


class Rewriting:
    """A host that gives a call another result."""

    def __init__(self, **members: Any) -> None:
        self.members = members

    async def after_tool_execution(self, _run: object, result: ToolResult) -> ToolResult:
        return replace(result, **self.members)


async def test_a_hook_may_put_any_text_into_a_result() -> None:
    result = await agent([call("pay"), "done"], [pay], hooks=[Rewriting(content=SURROGATE)]).run("go")
    assert (result.outcome, result.messages[2].text) == ("completed", "facture-?.pdf")


@pytest.mark.parametrize("members", [{"content": b"\xff"}, {"parts": ({"type": "text", "text": Receipt()},)}])
async def test_a_result_of_a_hook_that_cannot_be_stored_fails_the_run_and_leaves_the_call_done(
    members: dict[str, Any],
) -> None:
    journal = MemoryJournal()
    result = await agent([call("pay"), "done"], [pay], hooks=[Rewriting(**members)], journal=journal).run(
        "go"
    )
    assert (result.outcome, result.reason) == ("failed", "callback_error")
    assert "content must be text, parts must be JSON data" in str(result.error)
    done = [record.body for record in await journal.load(result.run_id) if record.kind == "done"]
    assert [body["outcome"] for body in done] == ["result_unreadable"]
