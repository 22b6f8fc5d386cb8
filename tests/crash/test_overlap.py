"""A request beside the append before it: a store loses what it did not sync, at each append and at each moment of it.

The store queues an append, lets some turns of the event loop pass, and then crashes: without the append, with it, or
because another owner has the run. The model sends its answer in pieces meanwhile. Whatever was lost, no effect that
cannot be repeated happens twice or never, no request is sent that depends on an answer without a record, nobody hears
of anything without a record, and no cost is missed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from orchestrator.errors import Corrupt, Fenced, JournalError, RunError, RunUnknown, StoreDown
from orchestrator.events import RunEvent, TextDelta
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.cancellation import at_once
from orchestrator.kernel.fact import EventFailed, Fact, LLMCall, ToolExecution, Transition
from orchestrator.kernel.journal import Draft, Lease, Pending
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Request, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopState
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import ToolContext, tool
from tests.crash.effect_invariants import check_effects
from tests.runtime.stage import NO_WAIT, Facts, Notebook
from tests.with_runtime import with_runtime

Loss = Literal["full", "lost", "damaged", "fenced", "kept"]
LOSSES: tuple[Loss, ...] = ("full", "lost", "damaged", "fenced", "kept")
"""What becomes of the append of a crash: refused at once, three times lost, and stored without an acknowledgement."""
ANSWERS_AFTER = 4
"""Turns of the event loop that an answer takes, with a piece of it in each."""
MOMENTS = (0, 2, ANSWERS_AFTER, ANSWERS_AFTER + 6)
"""Turns of the event loop from an append until it is durable: before, in, at the end of and behind an answer."""
APPENDS = 17
"""Of a whole run, as `test_the_campaign_reaches_every_append` counts them."""
OUTPUT = 30
SCRIPT: tuple[tuple[str, ...], ...] = (
    ("look",),
    ("pay",),
    ("look", "save"),
    ("look", "look"),
    ("charge",),
    ("pay", "pay"),
)
"""The calls of each turn."""


def price(model: str | None, tokens: Mapping[str, int]) -> float:
    return (tokens["input_tokens"] + 10 * tokens["output_tokens"]) / 1000


class SuffixLosingJournal(CrashingJournal):
    """Stores an append some turns of the event loop after it was queued; the `at`-th is the last one."""

    def __init__(self, inner: Any, *, at: int = 0, loss: Loss = "lost", turns: int = 0) -> None:
        super().__init__(inner, at=at)
        self._loss = loss
        self._turns = turns
        self.writing: asyncio.Future[None] | None = None

    @property
    def is_writing(self) -> bool:
        return self.writing is not None and not self.writing.done()

    def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Awaitable[None]:
        due = self._count("append")
        if due and self._loss == "full":
            self.crashed = True
            raise StoreDown("the disk is full", "full")
        pending: Pending[None] = Pending()
        self.writing = asyncio.ensure_future(self._store(pending, lease, drafts, blobs, due=due))
        return pending

    async def _store(
        self,
        pending: Pending[None],
        lease: Lease,
        drafts: Sequence[Draft],
        blobs: Mapping[str, bytes] | None,
        *,
        due: bool,
    ) -> None:
        for _ in range(self._turns):
            await asyncio.sleep(0)
        if not due or self._loss == "kept":
            waiting = self.inner.append(lease, drafts, blobs)
            if waiting is not None:
                await waiting
        self.crashed = due
        errors: dict[Loss, Exception] = {
            "damaged": Corrupt("the log is damaged"),
            "fenced": Fenced(lease.run_id, lease.epoch),
        }
        if due:
            pending.set_exception(errors.get(self._loss, StoreDown("crashed on purpose")))
        else:
            pending.set_result(None)


class World:
    """What happens outside: each request costs what it says, each effect is counted under its key."""

    def __init__(self) -> None:
        self.journal = SuffixLosingJournal(MemoryJournal())
        self.sent = Usage()
        self.asked = 0
        self.effects: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.beside = 0
        """Requests that were sent beside an append."""
        self.looked = 0
        """Pure calls that began beside an append."""

    async def records(self) -> StoredRun:
        return StoredRun.of("r", await self.journal.inner.load("r"))

    async def model(self, request: Request) -> Response:
        assert not self.journal.crashed, "a request was sent after the crash"
        turn = sum(message.role == "assistant" for message in request.messages)
        usage = Usage(sum(len(message.text) for message in request.messages) // 4 + 1, OUTPUT)
        self.asked, self.sent = self.asked + 1, self.sent + usage
        self.beside += self.journal.is_writing
        durable = sum(record.kind == "answer" for record in await self.journal.inner.load("r"))
        assert durable == turn, "a request depends on an answer without a record"
        for _ in range(ANSWERS_AFTER):
            if request.on_delta is not None:
                request.on_delta(f"{turn} ")
            await asyncio.sleep(0)
        if turn >= len(SCRIPT):
            return Response("done", usage=usage)
        calls = [
            ToolCall(f"{turn}{at}", name, f'{{"n": {turn * 10 + at}}}')
            for at, name in enumerate(SCRIPT[turn])
        ]
        return Response(None, tuple(calls), usage=usage)

    async def happens(self, tool: str, context: ToolContext) -> str:
        """Count an effect, whose announcement is durable."""
        key = context.idempotency_key
        entry = (await self.records()).ledger.entries.get(key.removeprefix("r:"))
        assert entry is not None, f"{tool} {key} was not announced"
        assert entry.open
        assert not self.journal.crashed, f"{tool} {key} happened after the crash"
        self.effects[f"{tool} {key}"] += 1
        return f"{tool} " * 40

    def tools(self) -> list[Any]:
        @tool(effect="pure")
        async def look(n: int) -> str:
            self.looked += self.journal.is_writing
            assert not self.journal.crashed, "a call began after the crash"
            await asyncio.sleep(0)
            return f"seen {n} " * 40

        @tool(effect="idempotent")
        async def save(context: ToolContext, n: int) -> str:
            self.keys.add(context.idempotency_key)
            return await self.happens("save", context)

        async def undo(context: ToolContext, n: int) -> str:
            self.effects[f"charge {context.idempotency_key}"] -= 1
            return "taken back"

        @tool(effect="compensable", undo=undo)
        async def charge(context: ToolContext, n: int) -> str:
            key = f"charge {context.idempotency_key}"
            self.effects[key] = max(0, self.effects[key])  # an undo of what had not happened changes nothing
            return await self.happens("charge", context)

        @tool(effect="irreversible")
        async def pay(context: ToolContext, n: int) -> str:
            return await self.happens("pay", context)

        return [look, save, charge, pay]

    def agent(self, journal: Any, *observers: Any) -> Agent:
        self.journal = journal
        limits = Limits(max_iterations=100, max_cost=1000.0, on_unknown_cost="stop")
        return Agent(
            FunctionLLM(self.model, model="model"),
            tools=self.tools(),
            limits=limits,
            params={"max_tokens": OUTPUT},
            **with_runtime(journal=journal, observers=observers, retry=NO_WAIT, price=price),
        )

    def assert_nothing_lost(self, result: Result) -> None:
        assert result.outcome is Outcome.COMPLETED, result
        expected = Counter(
            f"{name} r:{turn}:{at}"
            for turn, names in enumerate(SCRIPT, 1)
            for at, name in enumerate(names)
            if name in {"pay", "charge"}
        )
        effects = Counter({key: count for key, count in self.effects.items() if "save" not in key})
        assert effects == expected, "an effect happened twice, or never"
        assert self.keys == {"r:3:1"}, "the same key for every try"
        assert result.usage.input_tokens >= self.sent.input_tokens, "cost is never missed"
        assert result.usage.output_tokens >= self.sent.output_tokens
        sent = {"input_tokens": self.sent.input_tokens, "output_tokens": self.sent.output_tokens}
        assert (result.usage.cost or 0.0) >= price("model", sent)


class Watch:
    """An observer that hears of nothing without a record; needs a journal that can be read at once.

    When the journal is lost, it hears of requests and calls that happened, and of no transition.
    """

    def __init__(self, journal: SuffixLosingJournal) -> None:
        self._journal = journal
        self.early: list[Fact] = []
        """What it has heard of too early."""

    def observe(self, fact: Fact) -> None:
        durable = StoredRun.of("r", at_once(self._journal.inner.load("r")))
        has = True
        if isinstance(fact, Transition):
            has = fact.seq <= durable.seq
        elif self._journal.crashed:
            return
        elif isinstance(fact, LLMCall):
            has = durable.state == LoopState.AWAIT_LLM
        elif isinstance(fact, ToolExecution):
            has = durable.ledger.entries[f"{fact.iteration}:{fact.position}"].done is not None
        if not has:
            self.early.append(fact)


Crash = tuple[int, Loss, int]
"""The append, from 1 in each life, what becomes of it, and the turns of the loop that each append takes."""
Store = Callable[[], Any]


async def lived(world: World, inner: Any, crash: Crash, *, begun: bool) -> Result | None:
    """Run or resume until the end, which is returned, or until the crash. What was told is checked against records."""
    at, loss, turns = crash
    journal = SuffixLosingJournal(inner, at=at, loss=loss, turns=turns)
    observers = [Watch(journal)] if isinstance(inner, MemoryJournal) else []
    agent = world.agent(journal, *observers)
    stream = agent.stream_resume("r") if begun else agent.stream("go", run_id="r")
    told: list[RunEvent] = []

    async def read() -> Result | None:
        try:
            async for event in stream:
                told.append(event)  # noqa: PERF401 - also those before an error
            return await stream.result()
        except JournalError:
            assert journal.crashed
            return None

    reading = asyncio.ensure_future(read())
    while not reading.done():
        await asyncio.sleep(0)
        if journal.crashed:
            await asyncio.wait((reading,))
        else:
            await answer(agent, world)
    result = reading.result()
    assert [observer.early for observer in observers] == [[]] * len(observers), "heard of before its record"
    records = await inner.load("r")
    check_effects("r", records, rest=result is not None and not journal.crashed)
    asks = sum(record.kind == "transition" and record.body["dest"] == "await_llm" for record in records)
    for event in told:
        if isinstance(event, TextDelta):
            assert event.iteration <= asks, "a piece of an answer came before the record of its turn"
    return None if journal.crashed else result


async def answer(agent: Agent, world: World) -> None:
    """Say of each call that may have happened whether it did."""
    try:
        for question in await agent.pending("r"):
            if world.effects[f"{question.tool} r:{question.key}"]:
                await agent.respond("r", "it happened", question.key)
            else:
                await agent.approve("r", question.key)
    except (JournalError, RunUnknown, RunError):
        pass  # the crash was meanwhile, or the run is not asking any more


async def survives(world: World, store: Store, crashes: Sequence[Crash]) -> Result:
    """Crash again and again, then live to the end; each life opens the store anew."""
    for number, crash in enumerate([*crashes, (0, "lost", MOMENTS[1])]):
        inner = await store()
        exists = await begun(inner)
        result = await lived(world, inner, crash, begun=exists)
        await leave(inner)
        if result is not None:
            assert number or not crashes, f"no crash at {crash}"
            return result
    raise AssertionError("the last life did not reach the end")


async def begun(inner: Any) -> bool:
    try:
        await inner.head("r")
    except RunUnknown:
        return False
    return True


async def leave(inner: Any) -> None:
    """End the process that had the store."""
    if isinstance(inner, MemoryJournal):
        inner.bury((await inner.head("r")).owner or "")
    else:
        await inner.close()


def in_memory() -> Store:
    inner = MemoryJournal()

    async def opened() -> MemoryJournal:
        return inner

    return opened


def durable(make: Callable[[], Any]) -> Store:
    async def opened() -> Any:
        inner = make()
        await inner.open()
        return inner

    return opened


async def test_the_campaign_reaches_every_append() -> None:
    world = World()
    inner = MemoryJournal()
    result = await lived(world, inner, (0, "lost", 2), begun=False)
    assert result is not None
    world.assert_nothing_lost(result)
    assert len(world.journal.writes) == APPENDS
    assert world.asked == len(SCRIPT) + 1
    assert result.usage.estimated_output_tokens == 0
    assert world.beside == len(SCRIPT), "every request but the first"
    assert world.looked == 3, "in the two turns whose calls are all pure"


@pytest.mark.canary("lost: 2", "kept: 2", "fenced: 4")
@pytest.mark.parametrize(
    ("loss", "turns"),
    list(itertools.product(LOSSES, MOMENTS)),
    ids=str,
)
async def test_a_crash_at_any_append_loses_and_repeats_nothing(loss: Loss, turns: int) -> None:
    for at in range(1, APPENDS + 1):
        world = World()
        result = await survives(world, in_memory(), [(at, loss, turns)])
        world.assert_nothing_lost(result)


async def test_a_second_crash_in_the_recovery_loses_and_repeats_nothing(
    campaign: Callable[[int, int], int],
) -> None:
    for at in range(1, APPENDS, campaign(3, 1)):
        for second in range(1, 5):
            loss, turns = LOSSES[(at + second) % len(LOSSES)], MOMENTS[at % len(MOMENTS)]
            world = World()
            result = await survives(world, in_memory(), [(at, loss, turns), (second, "lost", turns)])
            world.assert_nothing_lost(result)


@pytest.mark.canary
@pytest.mark.parametrize("turns", MOMENTS)
@pytest.mark.parametrize("at", [2, 3, 7], ids=["an answer", "a pure call", "a pure and an idempotent call"])
async def test_each_crash_that_may_have_lost_an_answer_charges_one(at: int, turns: int) -> None:
    """Whether the request was sent or not: the last durable record is the same."""
    charged = []
    for crashes in range(4):
        world = World()
        again: list[Crash] = [(2, "lost", turns)] * (crashes - 1)
        result = await survives(world, in_memory(), [(at, "lost", turns), *again] if crashes else [])
        world.assert_nothing_lost(result)
        charged.append(result.usage.estimated_output_tokens)
    assert charged == [0, OUTPUT, 2 * OUTPUT, 3 * OUTPUT]


@pytest.mark.parametrize("turns", MOMENTS)
async def test_a_run_that_was_paused_after_its_calls_charges_a_request_that_a_crash_may_have_lost(
    turns: int,
) -> None:
    world, store = World(), in_memory()
    inner = await store()
    agent = world.agent(SuffixLosingJournal(inner, at=0, loss="lost", turns=turns))
    happens = world.happens

    async def paused(tool: str, context: ToolContext) -> str:
        agent.pause("r", by="ann")
        return await happens(tool, context)

    vars(world)["happens"] = paused
    going = asyncio.create_task(agent.run("go", run_id="r"))
    while not await begun(inner) or (await inner.head("r")).reason != "paused":  # noqa: ASYNC110  of the journal
        await asyncio.sleep(0)
    going.cancel()
    await asyncio.wait((going,))
    vars(world)["happens"] = happens
    assert (await world.records()).next == "tools_executed"
    await leave(inner)
    result = await survives(world, store, [(2, "lost", turns)])  # the first append says that it is resumed
    world.assert_nothing_lost(result)
    assert result.usage.estimated_output_tokens == OUTPUT


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_that_loses_what_was_not_synced_loses_nothing_else(
    kind: str, loss: Loss, tmp_path: Path, request: pytest.FixtureRequest, campaign: Callable[[int, int], int]
) -> None:
    url = request.getfixturevalue("database") if kind == "postgres" else ""
    # With these stores a run makes one append fewer than in memory.
    for at in range(1, APPENDS, campaign(3, 1)):
        name = f"at_{at}"
        make = partial(PostgresJournal, url, schema=name) if url else partial(SqliteJournal, tmp_path / name)
        world = World()
        result = await survives(world, durable(make), [(at, loss, MOMENTS[at % len(MOMENTS)])])
        world.assert_nothing_lost(result)


def silent() -> tuple[Callable[[Request], Awaitable[Response]], list[str], asyncio.Event]:
    """A model that calls a tool, and does not answer the next request; what becomes of that; when it is sent."""
    became: list[str] = []
    sent = asyncio.Event()

    async def model(request: Request) -> Response:
        if len(request.messages) == 1:
            return Response(None, (ToolCall("a", "look", '{"n": 1}'),))
        became.append("sent")
        sent.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            became.append("cancelled")
            raise
        raise AssertionError

    return model, became, sent


@pytest.mark.canary
@pytest.mark.parametrize("loss", ["lost", "damaged", "fenced"])
async def test_a_request_beside_an_append_that_fails_is_cancelled(loss: Loss) -> None:
    model, became, _ = silent()
    inner = MemoryJournal()
    journal = SuffixLosingJournal(inner, at=3, loss=loss, turns=5)
    facts = Facts()
    options = with_runtime(journal=journal, observers=(facts,), retry=NO_WAIT)
    agent = Agent(FunctionLLM(model), tools=World().tools(), **options)
    if loss == "fenced":
        with pytest.raises(Fenced):
            await agent.run("go", run_id="r")
    else:
        result = await agent.run("go", run_id="r")
        assert (result.outcome, result.reason) == (Outcome.FAILED, "journal_error")
        assert [fact.reason for fact in facts.of(EventFailed)] == ["journal_error"], "told once"
    assert became == ["sent", "cancelled"]
    assert [fact.event for fact in facts.of(Transition)][-1] == "response_with_tools"
    assert [fact.outcome for fact in facts.of(LLMCall)] == ["ok", "cancelled"]
    assert StoredRun.of("r", await inner.load("r")).state == LoopState.PROCESS_TOOLS


@pytest.mark.canary
@pytest.mark.parametrize("turns", [5, 40])
@pytest.mark.parametrize("loss", ["lost", "fenced", "kept", None])
async def test_a_caller_that_cancels_a_request_beside_an_append_gets_its_cancellation(
    turns: int, loss: Loss | None
) -> None:
    model, became, sent = silent()
    inner = MemoryJournal()
    journal = SuffixLosingJournal(inner, at=3 if loss else 0, loss=loss or "kept", turns=turns)
    agent = Agent(FunctionLLM(model), tools=World().tools(), **with_runtime(journal=journal, retry=NO_WAIT))
    running = asyncio.create_task(agent.run("go", run_id="r"))
    await sent.wait()
    running.cancel("by the caller")
    await asyncio.wait((running,))
    assert running.cancelled()
    assert became == ["sent", "cancelled"]
    if loss is None:
        stored = StoredRun.of("r", await inner.load("r"))
        assert (stored.state, (stored.parked or {})["reason"]) == (LoopState.AWAIT_LLM, "interrupted")


@pytest.mark.canary
async def test_an_answer_that_came_beside_an_append_is_charged_if_the_time_of_the_run_passes_then() -> None:
    clock = FakeClock()
    journal = SuffixLosingJournal(MemoryJournal(), turns=500)
    passing: list[asyncio.Task[None]] = []

    def model(request: Request) -> Response:
        if journal.is_writing:
            passing.append(asyncio.ensure_future(clock.advance(61.0)))
        return Response("so", (ToolCall("a", "look", '{"n": 1}'),), usage=Usage(100, 10))

    llm = FunctionLLM(model)
    options = with_runtime(journal=journal, clock=clock, retry=NO_WAIT)
    result = await Agent(llm, tools=World().tools(), **options).run("go", run_id="r", deadline=60.0)
    assert len(passing) == 1
    assert len(llm.requests) == 2
    assert result.usage == Usage(200, 20)


@pytest.mark.canary
@pytest.mark.parametrize(
    "hook", ["before_llm_request", "enter_await_llm", "leave_update_budgets", "leave_state"]
)
async def test_a_hook_of_the_host_before_a_request_runs_when_the_turn_is_durable(hook: str) -> None:
    inner = MemoryJournal()
    journal = SuffixLosingJournal(inner, turns=3)
    events: list[str] = []

    async def look_at_the_journal(run: Any, *request: Any) -> Any:
        records = await inner.load("r")
        assert not journal.is_writing, "the hook runs beside an append"
        events.append(records[-1].kind)
        return request[0] if request else None

    host = SimpleNamespace(**{hook: look_at_the_journal})
    script: list[Response | str] = [Response(None, (ToolCall("a", "look", '{"n": 1}'),)), "done"]
    options = with_runtime(journal=journal, retry=NO_WAIT)
    agent = Agent(ScriptedLLM(script), tools=World().tools(), hooks=[host], **options)
    assert (await agent.run("go", run_id="r")).output == "done"
    assert events


@pytest.mark.canary
async def test_the_memory_of_the_host_gets_a_summary_when_the_turn_is_durable() -> None:
    journal = SuffixLosingJournal(MemoryJournal(), turns=3)
    beside: list[bool] = []

    class Memory(Notebook):
        async def compact(self, key: str, summary: Message) -> None:
            beside.append(journal.is_writing)
            await super().compact(key, summary)

    limits = Limits(context_limit=100, compaction_threshold=0.8, compaction_cooldown=0)
    look = Response(None, (ToolCall("a", "look", '{"n": 1}'),), usage=Usage(90, 1))
    options = with_runtime(journal=journal, retry=NO_WAIT, memory=Memory(), limits=limits)
    agent = Agent(ScriptedLLM([look, Response("done", usage=Usage(10, 1))]), tools=World().tools(), **options)
    assert (await agent.run("go", run_id="r")).output == "done"
    assert beside == [False]


@pytest.mark.canary
@pytest.mark.parametrize(
    ("effect", "takes_context", "overlaps"),
    [
        ("pure", False, True),
        ("pure", True, False),
        ("idempotent", False, False),
        ("compensable", False, False),
        ("irreversible", False, False),
    ],
)
async def test_only_pure_calls_without_a_context_begin_beside_the_append_of_their_announcement(
    effect: Any, takes_context: bool, overlaps: bool
) -> None:
    journal = SuffixLosingJournal(MemoryJournal(), turns=3)
    began: list[bool] = []

    async def undo() -> str:
        return "undone"

    async def act() -> str:
        began.append(journal.is_writing)
        return "done"

    async def act_in(context: ToolContext) -> str:
        return await act()

    function = act_in if takes_context else act
    made = tool(effect=effect, name="act", undo=undo if effect == "compensable" else None)(function)
    script: list[Response | str] = [Response(None, (ToolCall("a", "act", "{}"),)), "done"]
    agent = Agent(ScriptedLLM(script), tools=[made], **with_runtime(journal=journal, retry=NO_WAIT))
    assert (await agent.run("go", run_id="r")).output == "done"
    assert began == [overlaps]
