"""What a stream tells: every fact as observers hear it, the words of the model as they come, and the Result."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import random
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from orchestrator.errors import ConfigError, LLMError, RunExists, RunUnknown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import LLMCall, OperationAttempt, Transition
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.live_event import ModelRequestRetried, RunEvent, TextDelta
from orchestrator.llm.message import Message, Request, Response
from orchestrator.llm.retry import RetryPolicy
from orchestrator.llm.run_event import ModelRequestFinished, ModelRequestStarted, RunCreated, RunFinished
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.replay import ProviderRecord, ReplayLLM
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import tool
from orchestrator_callbacks.llm_loop.deps import LoopRun
from tests.runtime.stage import Facts, agent
from tests.telemetry.sampling import sampled

CUT = LLMError("the connection was cut", kind="connection", partial="Found it a")


@tool(effect="pure")
def look() -> str:
    return "a fact"


def words(facts: Iterable[RunEvent], run_id: str | None = None) -> dict[tuple[int, int], str]:
    """(iteration, attempt) -> what the model said, of one run or of the only one."""
    said: defaultdict[tuple[int, int], str] = defaultdict(str)
    for fact in facts:
        if isinstance(fact, TextDelta) and run_id in (None, fact.run_id):
            said[fact.iteration, fact.attempt] += fact.text
    return dict(said)


async def told(runner: Agent, prompt: str = "go", **options: Any) -> list[RunEvent]:
    return [fact async for fact in runner.stream(prompt, **options)]


# ---- what it yields ----


async def test_the_events_are_those_of_the_journal_in_their_order_with_the_words_between_them() -> None:
    watching = Facts()
    script = [call("look"), CUT, "Found it at last."]
    runner = agent(script, [look], observers=[watching], journal=MemoryJournal())
    stream = runner.stream("go")
    events = [event async for event in stream]

    assert [event for event in events if event.id] == [one async for one in runner.runs.events(stream.run_id)]
    assert isinstance(events[0], RunCreated)
    assert isinstance(events[-1], RunFinished)
    assert {event.run_id for event in events} == {stream.run_id}
    first = next(at for at, event in enumerate(events) if isinstance(event, TextDelta))
    between = [
        type(event) for event in events[first - 1 :] if event.id or isinstance(event, ModelRequestRetried)
    ]
    assert between[:3] == [ModelRequestStarted, ModelRequestRetried, ModelRequestFinished], "while it speaks"
    result = await stream.result()
    assert result.outcome is Outcome.COMPLETED
    assert result.run_id == stream.run_id
    assert result.transitions == tuple(watching.of(Transition))


async def test_the_words_of_each_turn_add_up_to_what_the_model_said_in_it() -> None:
    stream = agent([Response("Let me look. ", (call("look"),)), "The\n answer "], [look]).stream("go")
    facts = [fact async for fact in stream]
    assert words(facts) == {(1, 1): "Let me look. ", (2, 1): "The\n answer "}
    assert (await stream.result()).output == "The\n answer "
    deltas = [fact for fact in facts if isinstance(fact, TextDelta)]
    assert len(deltas) > 2, "in pieces"
    for fact in facts:
        if isinstance(fact, ModelRequestFinished):
            assert (fact.iteration, 1) in words(facts), "by the number of the answer"


async def test_a_retried_answer_begins_again_with_the_next_attempt() -> None:
    facts = await told(agent([CUT, CUT, "Found it at last."]))
    assert words(facts) == {(1, 1): "Found it a", (1, 2): "Found it a", (1, 3): "Found it at last."}
    kinds = [
        (type(fact), fact.attempt if isinstance(fact, TextDelta) else 0)
        for fact in facts
        if isinstance(fact, TextDelta | ModelRequestRetried | ModelRequestFinished)
    ]
    steps = [kind for kind, after in pairwise([*kinds, (RunFinished, 0)]) if kind != after]
    again = (ModelRequestRetried, 0)
    assert steps == [
        *((TextDelta, 1), again, (TextDelta, 2), again, (TextDelta, 3), (ModelRequestFinished, 0)),
    ]
    retried = [(one.attempt, one.reason) for one in facts if isinstance(one, ModelRequestRetried)]
    assert retried == [(1, "connection"), (2, "connection")]


async def test_when_no_try_is_left_the_partial_text_is_in_the_error_also_of_a_stored_run() -> None:
    watching, retry = Facts(), RetryPolicy(attempts=2, base=0.0, jitter=0.0)
    runner = agent([CUT] * 2, retry=retry, journal=MemoryJournal(), observers=[watching])
    stream = runner.stream("go", run_id="r")
    assert [fact async for fact in stream]
    assert [(fact.outcome, fact.reason) for fact in watching.of(OperationAttempt)] == [
        ("retry", "connection"),
        ("exhausted", "connection"),
    ]
    for result in (await stream.result(), await runner.resume("r")):
        assert result.outcome is Outcome.FAILED
        assert result.reason == "llm_error"
        assert isinstance(result.error, LLMError)
        assert result.error.partial == "Found it a"


async def test_a_run_that_ends_badly_is_told_to_its_end_and_raises_nothing() -> None:
    stream = agent([ValueError("broken")]).stream("go")
    facts = [fact async for fact in stream]
    end = facts[-1]
    assert isinstance(end, RunFinished)
    assert end.outcome == "failed"
    assert isinstance((await stream.result()).error, ValueError)


async def test_an_attempt_says_nothing_any_more_once_it_is_over() -> None:
    listeners: list[Any] = []

    class Haunted:
        model = "haunted"

        async def complete(self, request: Request) -> Response:
            assert request.on_delta is not None
            listeners.append(request.on_delta)
            request.on_delta(f"word {len(listeners)}")
            listeners[0](" once more")
            if len(listeners) == 1:
                raise CUT
            return Response("word 3") if len(listeners) == 3 else Response("word 2", (call("haunt"),))

    @tool(effect="pure")
    def haunt() -> str:
        for listener in listeners:
            listener("ghost")
        return "boo"

    facts = await told(agent(Haunted(), [haunt]))
    assert words(facts) == {(1, 1): "word 1 once more", (1, 2): "word 2", (2, 1): "word 3"}


async def test_text_that_has_no_utf_8_is_told_as_it_will_be_kept() -> None:
    class Broken:
        model = "broken"

        async def complete(self, request: Request) -> Response:
            if request.on_delta is not None:
                for piece in ("a\ud83d", "\ude00", "é"):
                    request.on_delta(piece)
            return Response("a\ud83d\ude00é")

    stream = agent(Broken()).stream("go")
    facts = [fact async for fact in stream]
    assert words(facts)[1, 1] == (await stream.result()).output == "a??é"


async def test_a_recorded_conversation_streams_as_well() -> None:
    said = ProviderRecord("made", (Message("user", "go"), Message("assistant", "Two words")))
    assert words(await told(agent(ReplayLLM(said)))) == {(1, 1): "Two words"}


# ---- who is asked for words ----


async def test_words_are_asked_for_only_where_somebody_listens() -> None:
    llm = ScriptedLLM(["one", "two", "three"])
    runner = agent(llm)
    await runner.run("go")
    stream = runner.stream("go")
    other, streamed = await asyncio.gather(runner.run("go"), told_by(stream))
    assert sorted(request.on_delta is not None for request in llm.requests) == [False, False, True]
    assert list(words(streamed)) == [(1, 1)]
    assert {fact.run_id for fact in streamed} == {stream.run_id} != {other.run_id}


async def told_by(stream: Any) -> list[RunEvent]:
    return [fact async for fact in stream]


async def test_a_listener_that_a_hook_puts_into_the_request_hears_the_words_too() -> None:
    heard: list[str] = []

    class Host:
        async def before_llm_request(self, run: LoopRun, request: Request) -> Request:
            return dataclasses.replace(request, on_delta=heard.append)

    runner = agent(["one two", "three"], hooks=[Host()])
    assert words(await told(runner)) == {(1, 1): "one two"}
    assert "".join(heard) == "one two"
    await runner.run("go")
    assert "".join(heard) == "one twothree"


async def test_the_runs_below_are_told_with_their_own_ids_and_so_are_their_words() -> None:
    inner = agent(["from far below"])
    child = agent([call("deeper", task="dig on"), "from below"], [inner.as_tool("deeper", "Dig.")])
    script = [[call("dig", task="a"), call("look")], "from above"]
    runner = agent(script, [child.as_tool("dig", "Dig."), look], journal=MemoryJournal())
    facts = await told(runner, run_id="p")
    assert words(facts, "p") == {(2, 1): "from above"}
    assert words(facts, "p:1:0") == {(2, 1): "from below"}
    assert words(facts, "p:1:0:1:0") == {(1, 1): "from far below"}
    above = {fact.run_id: fact.parent_run_id for fact in facts if isinstance(fact, RunCreated)}
    assert above == {"p": None, "p:1:0": "p", "p:1:0:1:0": "p:1:0"}
    for run_id in above:
        own = [fact for fact in facts if fact.run_id == run_id and fact.id]
        assert own == [fact async for fact in runner.runs.events(run_id)]
    assert isinstance(facts[-1], RunFinished)
    assert facts[-1].run_id == "p"
    assert len(runner._service.live) == 0


async def test_what_a_stream_said_is_in_no_log_no_metric_and_no_journal() -> None:
    lines, registry, journal = io.StringIO(), CollectorRegistry(), MemoryJournal()
    cut = LLMError("cut", kind="connection", partial="XYZZY is")
    observers = [TransitionLog(lines), Metrics(registry)]
    facts = await told(agent([cut, "PLUGH is"], journal=journal, observers=observers), run_id="r")
    assert words(facts) == {(1, 1): "XYZZY is", (1, 2): "PLUGH is"}
    kept = repr([record.body for record in await journal.load("r")])
    assert "PLUGH" in kept, "the answer is what the run is about"
    assert "XYZZY" not in kept
    for text in (lines.getvalue(), generate_latest(registry).decode()):
        assert "XYZZY" not in text
        assert "PLUGH" not in text


# ---- time to the first token ----


async def test_the_time_to_the_first_token_is_that_of_each_attempt_and_only_of_streamed_ones() -> None:
    clock, registry = FakeClock(auto=True), CollectorRegistry()
    tries = iter((2.0, 0.5, None))

    class Slow:
        model = "slow"

        async def complete(self, request: Request) -> Response:
            seconds = next(tries)
            if seconds is None:
                return Response(None, (call("look"),)) if request.on_delta else Response("unstreamed")
            if request.on_delta is not None:
                request.on_delta("")
            await clock.sleep(seconds)
            if request.on_delta is not None:
                request.on_delta("word")
            await clock.sleep(1.0)
            if seconds == 2.0:
                raise LLMError("cut", kind="connection", partial="word")
            return Response("word")

    watching = Facts()
    runner = agent(Slow(), clock=clock, observers=[Metrics(registry), watching])
    await told(runner)
    assert [(one.outcome, one.first_token, one.seconds) for one in watching.of(LLMCall)] == [
        ("connection", 2.0, 3.0),
        ("ok", 0.5, 1.5),
    ]
    assert (await runner.run("go")).output == "unstreamed"
    assert watching.of(LLMCall)[-1].first_token is None
    labels = {"provider": "_unknown", "model": "slow"}
    name = "orchestrator_llm_time_to_first_token_seconds"
    assert sampled(registry, f"{name}_count", **labels) == 2, "of a try that was cut as well"
    assert sampled(registry, f"{name}_sum", **labels) == 2.5


async def test_an_attempt_that_was_cancelled_while_it_spoke_says_when_it_began_to() -> None:
    clock = FakeClock(auto=True)

    class Endless:
        model = "endless"

        async def complete(self, request: Request) -> Response:
            assert request.on_delta is not None
            await clock.sleep(2.0)
            request.on_delta("word")
            runner.cancel("r")
            never: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
            return await never

    watching = Facts()
    runner = agent(Endless(), clock=clock, observers=[watching])
    stream = runner.stream("go", run_id="r")
    assert words([fact async for fact in stream]) == {(1, 1): "word"}
    assert [(one.outcome, one.first_token) for one in watching.of(LLMCall)] == [("cancelled", 2.0)]
    assert (await stream.result()).outcome is Outcome.CANCELLED


async def test_a_run_that_is_cancelled_between_two_attempts_has_no_first_token_in_the_one_that_never_was() -> (
    None
):
    clock, watching = FakeClock(), Facts()
    retry = RetryPolicy(base=5.0, jitter=0.0)
    runner = agent([CUT, "never"], clock=clock, observers=[watching], retry=retry)
    stream = runner.stream("go", run_id="r")
    async for fact in stream:
        if isinstance(fact, ModelRequestRetried):
            runner.cancel("r")
    assert [(one.outcome, one.first_token) for one in watching.of(LLMCall)] == [
        ("connection", 0.0),
        ("cancelled", None),
    ]


# ---- how it is asked for ----


async def test_nothing_begins_before_the_first_fact_is_asked_for() -> None:
    journal = MemoryJournal()
    runner = agent(["hi"], journal=journal)
    stream = runner.stream("go", run_id="r")
    iterator = aiter(stream)
    await asyncio.sleep(0)
    with pytest.raises(RunUnknown):
        await journal.head("r")
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert isinstance(await anext(iterator), RunCreated)
    assert (await stream.result()).output == "hi"


def test_what_is_wrong_with_the_arguments_is_said_at_once() -> None:
    runner = agent(["hi"])
    for wrong in ({"run_id": ""}, {"limits": 3}, {"deadline": "soon"}, {"conversation_id": 4}):
        with pytest.raises(ConfigError):
            runner.stream("go", **wrong)


async def test_what_run_would_raise_is_raised_in_the_loop_and_by_result() -> None:
    runner = agent(["one", "two"])
    await runner.run("go", run_id="known")
    for stream in (runner.stream("go", run_id="known"), runner.stream("go", run_id="known")):
        with pytest.raises(RunExists):
            await told_by(stream)
        with pytest.raises(RunExists):
            await stream.result()
    with pytest.raises(ConfigError, match="empty"):
        await told_by(runner.stream([]))


async def test_a_run_that_is_under_way_is_not_told_to_whoever_names_its_id() -> None:
    held, reached = asyncio.Event(), asyncio.Event()

    async def model(request: Request) -> str:
        reached.set()
        await held.wait()
        return "secret"

    runner = agent(FunctionLLM(model))
    running = asyncio.create_task(runner.run("go", run_id="r"))
    await reached.wait()
    facts = aiter(runner.stream("go", run_id="r"))
    with pytest.raises(RunExists):
        await anext(facts)
    held.set()
    assert (await running).output == "secret"


async def test_a_stream_goes_on_with_a_conversation_under_its_own_limits_and_deadline() -> None:
    clock = FakeClock()
    llm = ScriptedLLM(["one", "two", [call("look")], "late"])
    runner = agent(llm, [look], clock=clock)
    await runner.run("first", conversation_id="c")
    await told(runner, "second", conversation_id="c")
    assert [message.text for message in llm.requests[1].messages] == ["first", "one", "second"]
    facts = await told(runner, limits=Limits(max_iterations=1))
    assert isinstance(facts[-1], RunFinished)
    assert facts[-1].outcome == "budget_exceeded"
    ended = (await told(runner, deadline=0))[-1]
    assert isinstance(ended, RunFinished)
    assert (ended.outcome, ended.reason) == ("budget_exceeded", "time")


# ---- any pieces, any speed ----


@given(
    answers=st.lists(st.text(max_size=40).filter(str.strip), min_size=1, max_size=4),
    cuts=st.lists(st.booleans(), min_size=4, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_the_words_of_the_last_attempt_are_the_answer_whatever_its_pieces_and_whoever_reads(
    answers: list[str], cuts: list[bool], seed: int
) -> None:
    asyncio.run(_any_pieces(answers, cuts, random.Random(seed)))


async def _any_pieces(answers: list[str], cuts: list[bool], rng: random.Random) -> None:
    *turns, last = answers
    model = Piecemeal([*(Response(text, (call("look"),)) for text in turns), Response(last)], cuts, rng)
    runner = agent(model, [look], limits=Limits(max_repeated_success=0, max_no_progress=0))
    stream = runner.stream("go")
    facts: list[RunEvent] = []
    async for fact in stream:
        facts.append(fact)
        for _ in range(rng.choice((0, 0, 0, 1, 3, 100))):
            await asyncio.sleep(0)
    result = await stream.result()
    said = words(facts)
    newest = {iteration: text for (iteration, _), text in sorted(said.items())}
    spoken = [message.text for message in result.messages if message.role == "assistant"]
    assert [newest.get(turn, "") for turn in range(1, len(spoken) + 1)] == spoken
    assert max(attempt for _, attempt in said) <= 2


class Piecemeal:
    """Says its answers in pieces of any size, at any pace; some are cut on the first try."""

    double = True
    model = "piecemeal"

    def __init__(self, answers: list[Response], cuts: list[bool], rng: random.Random) -> None:
        self._answers = answers
        self._cuts = cuts
        self._rng = rng

    async def complete(self, request: Request) -> Response:
        turn = sum(message.role == "assistant" for message in request.messages)
        answer, rng = self._answers[turn], self._rng
        text = str(answer.content)
        cut, self._cuts[turn] = self._cuts[turn], False
        end = rng.randint(0, len(text)) if cut else len(text)
        at = 0
        while at < end:
            size = rng.randint(0, 7)
            if request.on_delta is not None:
                request.on_delta(text[at : min(at + size, end)])
            at += size
            for _ in range(rng.choice((0, 0, 1, 5))):
                await asyncio.sleep(0)
        if cut:
            raise LLMError("cut", kind="connection", partial=text[:end])
        return answer
