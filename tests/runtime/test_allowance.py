"""Budgets lent to the runs below a run: reserved before each request, never exceeded by more than one of them."""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import LimitReached, StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import RunCompleted
from orchestrator.kernel.journal import Lease
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Request, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.llm_loop import composition as compose
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.testing import FakeClock
from orchestrator.tools.spec import tool
from orchestrator_callbacks.llm_loop.budget_account import BudgetAccount, lend_limits
from orchestrator_callbacks.llm_loop.deps import LoopRun
from tests.runtime.stage import NO_WAIT, Facts
from tests.with_runtime import with_runtime

SILENT: dict[str, Any] = {"observers": (), "retry": NO_WAIT}
MOST_OUT = 50


# ---- one account ----


def account(
    limits: Limits | None = None, lender: BudgetAccount | None = None, run_id: str = "r"
) -> BudgetAccount:
    machine, points = compose.machine(LLM_LOOP, ())
    deps = compose.handles(ScriptedLLM([]), (), FakeClock(), None, None, None, points=points)
    run: LoopRun = Run(machine, run_id, LoopContext([], limits or Limits(), 0), deps)
    return BudgetAccount(run, lender)


class Durable:
    """Settles the drafts of a run, in place of its journal."""

    def __init__(self) -> None:
        self.records: list[str] = []

    async def settle(self, run: LoopRun) -> None:
        self.records += [one.kind for one in run.writes.drafts]
        run.writes.drafts.clear()


async def started(*asking: Any) -> list[asyncio.Task[None]]:
    """Begin these; each has come as far as it can."""
    tasks = [asyncio.create_task(one) for one in asking]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def test_a_request_that_does_not_fit_beside_those_in_flight_waits_until_one_is_settled() -> None:
    root = account(Limits(max_input_tokens=100))
    one, two = account(lender=root), account(lender=root)
    services: Any = Durable()
    two.run.control.services = services
    two.run.control.lease = Lease("r", "me", 1, 0, "")
    await one.reserve(Usage(60))
    (waiting,) = await started(two.reserve(Usage(60)))
    assert not waiting.done()
    assert services.records == ["parked"]
    one.settle(Usage(60), Usage(10))
    await waiting
    assert services.records == ["parked", "reserved"], "both are durable before the request is sent"
    assert (root.run.ctx.spent.total.input_tokens, root.flying) == (10, [Usage(60)])


async def test_with_nothing_in_flight_the_last_request_goes_out_and_the_next_is_refused() -> None:
    root = account(Limits(max_output_tokens=100), run_id="top")
    one = account(lender=root)
    await one.reserve(Usage(0, 5_000))
    one.settle(Usage(0, 5_000), Usage(0, 100))
    with pytest.raises(LimitReached, match=r"output_tokens: 100 of 100 used \(of run top\)"):
        await one.reserve(Usage(0, 1))
    assert root.flying == []


async def test_those_who_wait_are_refused_when_what_is_in_flight_uses_it_up() -> None:
    root = account(Limits(max_cost=1.0))
    one, two = account(lender=root), account(lender=root)
    await one.reserve(Usage(cost=0.9))
    (waiting,) = await started(two.reserve(Usage(cost=0.9)))
    one.settle(Usage(cost=0.9), Usage(cost=1.25))
    with pytest.raises(LimitReached, match=r"cost: 1\.25 of 1 used"):
        await waiting


async def test_nobody_passes_one_that_came_before_and_waits_for_the_same_budget() -> None:
    root = account(Limits(max_input_tokens=100))
    asking = [account(lender=root) for _ in range(3)]
    await asking[0].reserve(Usage(90))
    large, small = await started(asking[1].reserve(Usage(80)), asking[2].reserve(Usage(5)))
    assert not small.done(), "it would fit, but the large one would wait for ever"
    asking[0].settle(Usage(90), Usage(1))
    await asyncio.gather(large, small)
    assert root.flying == [Usage(80), Usage(5)]


async def test_one_that_waits_for_its_own_group_is_in_nobody_elses_way() -> None:
    root = account(Limits(max_input_tokens=1000))
    group = account(Limits(max_input_tokens=10), lender=root)
    inside = [account(lender=group) for _ in range(2)]
    await inside[0].reserve(Usage(10))
    (blocked,) = await started(inside[1].reserve(Usage(10)))
    await account(lender=root).reserve(Usage(10))
    assert not blocked.done()
    inside[0].settle(Usage(10), Usage(3))
    await blocked


@pytest.mark.parametrize("let_out_first", [False, True])
async def test_a_cancelled_request_leaves_nothing_reserved(let_out_first: bool) -> None:
    root = account(Limits(max_input_tokens=100))
    asking = [account(lender=root) for _ in range(3)]
    await asking[0].reserve(Usage(90))
    doomed, behind = await started(asking[1].reserve(Usage(80)), asking[2].reserve(Usage(5)))
    if let_out_first:
        asking[0].settle(Usage(90), Usage(1))
    doomed.cancel()
    await asyncio.wait((doomed,))
    await behind
    assert root.flying == ([Usage(5)] if let_out_first else [Usage(90), Usage(5)])
    assert not root.queue._waiting


async def test_where_nobody_knows_a_price_a_limit_on_cost_lets_out_one_request_at_a_time() -> None:
    root = account(Limits(max_cost=5.0))
    one, two = account(lender=root), account(lender=root)
    await one.reserve(Usage(10))
    (waiting,) = await started(two.reserve(Usage(10)))
    assert not waiting.done()
    one.settle(Usage(10), Usage(10, cost=0.5))
    await waiting


async def test_a_parents_wrap_up_turn_is_not_lent() -> None:
    root = account(Limits(max_input_tokens=100, wrap_up_turns=1, wrap_up_share=0.2))
    one = account(lender=root)
    one.lender.add(Usage(80)) if one.lender else None
    with pytest.raises(LimitReached, match="input_tokens: 80 of 80 used"):
        await one.reserve(Usage(1))


def test_a_share_is_of_what_is_left_and_never_nothing() -> None:
    root = account(Limits(max_input_tokens=1000, max_cost=2.0))
    root.add(Usage(600, 70, cost=1.0))
    given = lend_limits(root, Limits(max_input_tokens=500, max_output_tokens=9), 0.5)
    assert (given.max_input_tokens, given.max_output_tokens, given.max_cost) == (200, 9, 0.5)
    root.add(Usage(600, cost=9.0))
    given = lend_limits(root, Limits(), 0.5)
    assert (given.max_input_tokens, given.max_output_tokens) == (1, 0)
    assert 0 < given.max_cost < 0.001
    assert lend_limits(root, Limits(max_cost=7.0), 0.0) == Limits(max_cost=7.0)


# ---- what is served, seen from outside ----


class Provider:
    """The model of every agent in a tree: logs what it served when it is asked, long before anybody has the answer.

    What it serves stays within the estimate of a request: half a token a byte, what it reported last, `max_tokens`.
    """

    def __init__(self, rng: random.Random, turns: int = 4, least_out: int = 1) -> None:
        self.rng = rng
        self.turns = turns
        self.least_out = least_out
        self.served = Counter[str]()
        self.by_task = Counter[str]()
        self.largest = Counter[str]()
        self.requests = 0
        self.at_once = self.most_at_once = 0
        self._last: dict[tuple[str, int], int] = {}
        self.fan: dict[str, list[ToolCall]] = {}
        """First words of a task -> the calls that answer it."""

    def llm(self) -> FunctionLLM:
        return FunctionLLM(self.model, model="m")

    async def model(self, request: Request) -> Response:
        task = next(message.text for message in request.messages if message.role == "user").split("|")[0]
        turn = sum(message.role == "assistant" for message in request.messages)
        usage = self._usage(request, task, turn)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            for _ in range(self.rng.randrange(4)):
                await asyncio.sleep(0)
        finally:
            self.at_once -= 1
        calls = self.fan.get(task) if turn == 0 else None
        if calls is None and task not in self.fan and self.rng.randrange(self.turns):
            calls = [ToolCall("x", "look", f'{{"n": {turn}}}')]
        if calls:
            return Response(None, tuple(calls), usage=usage)
        return Response(f"done {task}", usage=usage)

    def _usage(self, request: Request, task: str, turn: int) -> Usage:
        last = max(at for at in range(-1, len(request.messages)) if at < 0 or _said(request, at))
        new = sum(len(message.text.encode()) for message in request.messages[last + 1 :])
        most = self._last.get((task, turn - 1), 0) + new // 2
        usage = Usage(
            self.rng.randint(most // 2, max(1, most)),
            self.rng.randint(self.least_out, MOST_OUT),
        )
        self._last[task, turn] = usage.input_tokens + usage.output_tokens
        for name, used in (("in", usage.input_tokens), ("out", usage.output_tokens)):
            self.served[name] += used
            self.by_task[f"{name} {task}"] += used
            self.largest[name] = max(self.largest[name], used)
        self.requests += 1
        return usage

    def over(self, limits: Limits) -> dict[str, int]:
        """By how much each limit is exceeded; never by more than the largest request."""
        over = {}
        for name, limit in (("in", limits.max_input_tokens), ("out", limits.max_output_tokens)):
            if limit:
                over[name] = self.served[name] - limit
                assert over[name] <= self.largest[name], (name, self.served, limit)
        return over


def _said(request: Request, at: int) -> bool:
    return request.messages[at].role == "assistant"


@tool(effect="pure", progress="cumulative")
def look(n: int) -> str:
    """Look."""
    return f"seen {n} " * 20


TASK = "x" * 200
OFF: dict[str, Any] = {
    "max_concurrent_tools": 0,
    "max_no_progress": 0,
    "max_repeated_success": 0,
    "max_iterations": 30,
}


def family(provider: Provider, limits: Limits, journal: Any, groups: int, each: int, inner: Limits) -> Agent:
    """A root whose first answer calls `groups` agents, each of which calls `each` agents that look around."""
    options: dict[str, Any] = {"params": {"max_tokens": MOST_OUT}, "limits": Limits(**OFF), **SILENT}
    leaf = Agent(provider.llm(), tools=[look], **options)
    group = Agent(provider.llm(), tools=[leaf.as_tool("leaf", "")], **options)
    tools = [group.as_tool("group", "", limits=inner), leaf.as_tool("leaf", "")]
    provider.fan["root"] = [ToolCall("x", "group", f'{{"task": "g{at}|{TASK}"}}') for at in range(groups)]
    if not groups:
        provider.fan["root"] = [ToolCall("x", "leaf", f'{{"task": "l{at}|{TASK}"}}') for at in range(each)]
    for at in range(groups):
        provider.fan[f"g{at}"] = [
            ToolCall("x", "leaf", f'{{"task": "g{at}.{leaf_at}|{TASK}"}}') for leaf_at in range(each)
        ]
    return Agent(provider.llm(), tools=tools, journal=journal, **{**options, "limits": limits})


@pytest.mark.parametrize(
    "round_", [0, 1, *(pytest.param(each, marks=pytest.mark.campaign) for each in range(2, 8))]
)
async def test_fifty_children_at_once_exceed_no_limit_by_more_than_one_request(
    seed: int, round_: int, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(f"{seed} {round_}")
    provider = Provider(rng)
    limits = Limits(
        max_input_tokens=rng.choice([0, rng.randrange(6_000, 20_000)]),
        max_output_tokens=rng.choice([0, rng.randrange(800, 3_000)]) or 2_000,
        **OFF,
    )
    result = await family(provider, limits, MemoryJournal(), 0, 50, Limits()).run(f"root|{TASK}")

    over = provider.over(limits)
    record_property("over", over)
    print(over, dict(provider.largest), provider.requests, provider.most_at_once)  # noqa: T201 - the figures
    assert provider.most_at_once > 5
    served = (provider.served["in"], provider.served["out"])
    assert (result.usage.input_tokens, result.usage.output_tokens) == served, "nothing is counted twice"
    if max(over.values()) >= 0:
        assert result.outcome is Outcome.BUDGET_EXCEEDED
        read = [message.text for message in result.messages if message.role == "tool"]
        assert any("ended as budget_exceeded" in text for text in read) or len(read) == 50


async def own_usage(journal: MemoryJournal) -> tuple[int, int]:
    """What all runs of a journal used by themselves: input and output tokens."""
    used = []
    for run_id in [head.run_id async for head in journal.runs()]:
        stored = StoredRun.of(run_id, await journal.load(run_id))
        used.append(stored.context["spent"]["usage"])
    return sum(one["input_tokens"] for one in used), sum(one["output_tokens"] for one in used)


async def run_through_crashes(
    rng: random.Random, inner: MemoryJournal, agent: Callable[[Any], Agent]
) -> tuple[Result, int]:
    """Run a tree to its end though its journal fails, or its caller gives up, up to three times."""
    broken = 0
    while True:
        journal = CrashingJournal(inner, at=rng.randrange(3, 150), when=rng.choice(["before", "after"]))
        store: Any = journal if broken < 3 else inner
        known = bool([head async for head in inner.runs()])
        one = agent(store)
        task = asyncio.create_task(one.resume("p") if known else one.run(f"root|{TASK}", run_id="p"))
        if broken < 3 and not rng.randrange(3):
            for _ in range(rng.randrange(400)):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait((task,))
        heads = [head async for head in inner.runs()]
        if not task.cancelled() and task.exception() is None and not journal.crashed:
            return task.result(), broken
        assert task.cancelled() or task.exception() is None or isinstance(task.exception(), StoreDown)
        broken += 1
        for owner in {head.owner for head in heads if head.owner}:
            inner.bury(owner)
        if any(head.run_id == "p" and head.status == "ended" for head in heads):
            return await agent(inner).resume("p"), broken


@pytest.mark.campaign
async def test_no_limit_of_any_run_is_exceeded_by_more_than_one_request_crashes_and_resumes_included(
    seed: int, campaign: Callable[[int, int], int]
) -> None:
    crashes, most = 0, Counter[str]()
    for round_ in range(campaign(20, 2_000)):
        rng = random.Random(f"{seed} {round_}")
        provider = Provider(rng, turns=rng.randint(1, 5))
        groups, each = rng.choice([(0, 50), (0, 12), (3, 6), (5, 2), (1, 1)])
        limits = Limits(
            max_input_tokens=rng.choice([0, rng.randrange(300, 20_000)]),
            max_output_tokens=rng.choice([0, rng.randrange(50, 3_000)]),
            **{**OFF, "max_concurrent_tools": rng.choice([0, 0, 1, 4])},
        )
        inside = Limits(max_output_tokens=rng.choice([0, rng.randrange(60, 400)]), **OFF)
        inner = MemoryJournal()

        def agent(store: Any) -> Agent:
            return family(provider, limits, store, groups, each, inside)  # noqa: B023 - called in this round

        try:
            result, broken = await run_through_crashes(rng, inner, agent)
            crashes += broken
            for name, over in provider.over(limits).items():
                most[name] = max(most[name], over)
            for at in range(groups if inside.max_output_tokens else 0):
                used = sum(n for task, n in provider.by_task.items() if task.startswith(f"out g{at}"))
                assert used - inside.max_output_tokens <= provider.largest["out"]
            assert result.usage.input_tokens >= provider.served["in"], "I9: what was served is charged"
            assert result.usage.output_tokens >= provider.served["out"]
            if not broken:
                assert result.usage.output_tokens == provider.served["out"]
            total = (result.usage.input_tokens, result.usage.output_tokens)
            assert total == await own_usage(inner), "each run is counted once"
            assert not [head.run_id async for head in inner.runs() if head.status != "ended"]
        except AssertionError:
            print(f"round {round_}: {groups} x {each}, {limits}, {inside}")  # noqa: T201
            raise
    print(f"crashes {crashes}, most over a limit {dict(most)}")  # noqa: T201
    assert crashes > 10


async def crashed_in_flight(provider: Provider, inner: MemoryJournal, agent: Agent, runs: int) -> None:
    """Run a tree up to where all its `runs` have asked, the leaves without an answer, or wait; then crash."""
    task = asyncio.create_task(agent.run(f"root|{TASK}", run_id="p"))
    async with asyncio.timeout(20):
        while provider.requests + len([one async for one in inner.runs(status="parked")]) < runs:  # noqa: ASYNC110
            await asyncio.sleep(0)
    left = copy.deepcopy(inner.__dict__)  # the journal as a process that is killed now leaves it
    task.cancel()
    await asyncio.wait((task,))
    inner.__dict__.update(left)
    for owner in {head.owner async for head in inner.runs() if head.owner}:
        inner.bury(owner)


class Silent(Provider):
    """A provider that never answers a leaf."""

    async def model(self, request: Request) -> Response:
        response = await super().model(request)
        if not response.tool_calls:
            await asyncio.Event().wait()
        return response


@pytest.mark.parametrize("at_once", [0, 1])
@pytest.mark.parametrize(("groups", "each", "limit"), [(0, 10, 301), (2, 3, 401)], ids=["flat", "nested"])
async def test_what_was_in_flight_at_a_crash_is_counted_before_the_first_child_goes_on(
    at_once: int, groups: int, each: int, limit: int
) -> None:
    inner, inside = MemoryJournal(), Limits(**OFF)
    silent = Silent(random.Random(1), turns=1, least_out=MOST_OUT)
    limits = Limits(max_output_tokens=limit, **OFF)
    runs = 1 + groups + (groups or 1) * each
    await crashed_in_flight(silent, inner, family(silent, limits, inner, groups, each, inside), runs)
    assert silent.served["out"] == limit - 1, "as much as fits"
    waiting = [head.run_id async for head in inner.runs(status="parked")]
    assert len(waiting) == runs - silent.requests, "those that do not fit wait, and the journal knows it"

    again = Provider(random.Random(1), turns=1, least_out=MOST_OUT)
    limits = Limits(max_output_tokens=limit, **{**OFF, "max_concurrent_tools": at_once})
    result = await family(again, limits, inner, groups, each, inside).resume("p", limits=limits)

    assert silent.served["out"] + again.served["out"] <= limit + MOST_OUT
    assert result.usage.output_tokens <= limit + MOST_OUT, "what waited is not charged"
    assert (result.usage.input_tokens, result.usage.output_tokens) == await own_usage(inner)


# ---- the runs ----


async def test_the_parents_guards_count_what_its_children_used() -> None:
    child = Agent(ScriptedLLM(["gold", "gold"], usage=Usage(100, 1)), **SILENT)
    script: list[Any] = [call("dig", task="a"), call("dig", task="b"), "never asked"]
    parent = Agent(
        ScriptedLLM(script, usage=Usage(10, 1)),
        tools=[child.as_tool("dig", "")],
        limits=Limits(max_input_tokens=220),
        **SILENT,
    )
    result = await parent.run("go")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "input_tokens")
    assert result.verdict is not None
    assert (result.verdict.observed, result.verdict.limit) == (220, 220)
    assert result.usage == Usage(220, 4)


async def test_a_child_is_refused_what_its_parent_has_not_left_and_the_parent_can_still_wrap_up() -> None:
    facts = Facts()
    llm = FunctionLLM(lambda _: call("look", n=1), usage=Usage(25, 1))
    child = Agent(llm, tools=[look], observers=(facts,), retry=NO_WAIT)
    parent = Agent(
        ScriptedLLM([call("dig", task="a"), "in short: nothing"], usage=Usage(10, 1)),
        tools=[child.as_tool("dig", "")],
        limits=Limits(max_input_tokens=150, wrap_up_turns=1, wrap_up_share=0.2),
        **SILENT,
    )
    result = await parent.run("go", run_id="p")
    assert (result.outcome, result.output) == (Outcome.PARTIAL, "in short: nothing")
    (read,) = [message.text for message in result.messages if message.role == "tool"]
    assert "budget_exceeded (input_tokens): input_tokens: 135 of 120 used (of run p)" in read
    (ended,) = facts.of(RunCompleted)
    assert (ended.verdict.guard, ended.verdict.observed, ended.verdict.limit) == ("input_tokens", 135, 120)


async def test_a_share_bounds_one_child_and_survives_with_it() -> None:
    child = Agent(FunctionLLM(lambda _: call("look", n=1), usage=Usage(30, 1)), tools=[look], **SILENT)
    journal = MemoryJournal()
    parent = Agent(
        ScriptedLLM([call("dig", task="a"), "done"], usage=Usage(100, 1)),
        tools=[child.as_tool("dig", "", share=0.1)],
        limits=Limits(max_input_tokens=1_100),
        journal=journal,
        **SILENT,
    )
    result = await parent.run("go", run_id="p")
    assert result.usage.input_tokens == 100 + 120 + 100
    (created, *_) = await journal.load("p:1:0")
    assert created.body["context"]["limits"]["max_input_tokens"] == 100


async def test_cost_is_lent_by_the_price_of_each_agents_model() -> None:
    def price(_: str | None, usage: Any) -> float:
        return float(usage["output_tokens"]) / 100

    served = 0.0
    at_once = most = 0

    async def model(_: Request) -> Response:
        nonlocal served, at_once, most
        served, at_once = served + 0.5, at_once + 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return Response("gold", usage=Usage(1, 50))

    child = Agent(FunctionLLM(model), params={"max_tokens": 50}, **with_runtime(price=price, **SILENT))
    script: list[Any] = [[call("dig", task=f"{n}") for n in range(20)], "done"]
    parent = Agent(
        ScriptedLLM(script, usage=Usage(1, 0)),
        tools=[child.as_tool("dig", "")],
        limits=Limits(max_cost=4.2, max_concurrent_tools=0),
        **with_runtime(price=price, **SILENT),
    )
    result = await parent.run("go")
    assert (served, most) == (4.0, 8), "a ninth answer can cost 0.5, and 0.2 are left"
    assert result.usage.cost == 4.0


@pytest.mark.parametrize(("seconds", "charged"), [(0.0, 0), (0.125, 25), (60.0, 70)])
async def test_a_request_that_is_cancelled_in_flight_counts_what_its_time_and_its_limit_allow(
    seconds: float, charged: int
) -> None:
    asked, clock = asyncio.Event(), FakeClock()

    async def model(_: Request) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    child = Agent(FunctionLLM(model), params={"max_tokens": 70}, **with_runtime(clock=clock, **SILENT))
    parent = Agent(
        ScriptedLLM([call("dig", task="a"), "done"], usage=Usage(1, 1)),
        tools=[child.as_tool("dig", "")],
        **with_runtime(clock=clock, **SILENT),
    )
    running = asyncio.create_task(parent.run("go", run_id="p"))
    await asked.wait()
    await clock.advance(seconds)
    parent.cancel("p:1:0")
    result = await running
    assert result.outcome is Outcome.COMPLETED
    assert result.usage.output_tokens == 2 + charged
    assert result.usage.estimated_output_tokens == charged


async def test_a_run_that_calls_no_agent_has_no_account() -> None:
    seen: list[Any] = []

    class Hooks:
        async def before_finalize(self, run: LoopRun, _: Any) -> None:
            seen.append(run)

    child = Agent(ScriptedLLM([]), **SILENT)
    agent = Agent(ScriptedLLM(["a", "b"]), tools=[look, child.as_tool("dig", "")], hooks=[Hooks()], **SILENT)
    await agent.run("go")
    await agent.run("go")
    one, two = seen
    assert one.deps is two.deps
    assert (one.deps.account, one.ctx.spent.below) == (None, None)
