"""Branches of a state: agents, workflows and tools as child runs, and the decision of their join."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator import (
    LLM_LOOP,
    Agent,
    ConfigError,
    Edge,
    Limits,
    MemoryJournal,
    Outcome,
    Response,
    Runtime,
    ToolContext,
    Usage,
    tool,
)
from orchestrator.branches import ALL, ANY, Branch, Fan, Join, Workflow, ended, fan_out, first, joined, quorum
from orchestrator.events import BranchEnded
from orchestrator.kernel import Run
from orchestrator.llm.message import Request
from orchestrator.telemetry import Metrics
from orchestrator.testing import FakeClock, FunctionLLM, ScriptedLLM, call
from tests.runtime.branches.machine import Hooks, SpreadContext, spread, workflow
from tests.runtime.stage import until


@tool(effect="pure")
def double(number: int) -> int:
    """Double a number."""
    if number < 0:
        raise ValueError("below zero")
    return 2 * number


def of_double(number: int) -> Branch[Any]:
    return Branch(double, {"number": number})


class Gate:
    """Tools that run until the test lets them go on."""

    def __init__(self) -> None:
        self.open, self.started, self.effects = asyncio.Event(), asyncio.Event(), list[str]()
        self.undo_fails = 0
        self.running = self.most = 0

    def tool(self, effect: Any, **options: Any) -> Any:
        async def undo(context: ToolContext, name: str) -> None:
            if self.undo_fails:
                self.undo_fails -= 1
                raise RuntimeError("no answer")
            self.effects.append(f"undone {name} under {context.idempotency_key}")

        if effect == "compensable":
            options["undo"] = undo

        @tool(effect=effect, **options)
        async def book(context: ToolContext, name: str) -> str:
            """Book a hotel."""
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                if name.startswith("slow"):
                    self.started.set()
                    await self.open.wait()
                self.effects.append(f"{name} under {context.idempotency_key}")
            finally:
                self.running -= 1
            return name

        return book


async def decided(machine: Workflow[Any, Any]) -> bool:
    return "joined" in [one.kind for one in await machine.runs.journal.load("p1")]


async def questions(machine: Workflow[Any, Any], count: int) -> bool:
    return len(await machine.questions("p1")) == count


async def test_the_results_have_the_order_of_the_items() -> None:
    machine = workflow(Fan(max=5, concurrency=2), of_double)
    result = await machine.run(SpreadContext([3, 1, 2]), run_id="p1")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, [6, 2, 4])
    records = await machine.runs.journal.load("p1")
    assert [one.kind for one in records] == ["created", "fan", "joined", "transition", "context", "ended"]
    assert records[3].body["guards"] == [[True, "joined", 3, 3]]
    ids = sorted([head.run_id async for head in machine.runs.journal.runs(parent_run_id="p1")])
    assert ids == ["p1:spread.0:0", "p1:spread.0:1", "p1:spread.0:2"]
    assert (await machine.resume("p1")).output == [6, 2, 4]


@pytest.mark.parametrize(
    ("join", "items", "said", "outcomes"),
    [
        (ALL, [1, 2], "2 of 2 needed (2 of 2)", "ok ok"),
        (ALL, [-1, 1, 2], "0 of 3 needed (0 of 3)", "no - -"),
        (ALL, [], "0 of 0 needed (0 of 0)", ""),
        (ANY, [-1, 1, 2], "1 of 1 needed (1 of 3)", "no ok -"),
        (ANY, [-1, -2], "0 of 1 needed (0 of 2)", "no no"),
        (ANY, [], "0 of 1 needed (0 of 0)", ""),
        (first(2), [1, -1, 2, 3], "2 of 2 needed (2 of 4)", "ok no ok -"),
        (first(3), [1, -1, -2, 3], "1 of 3 needed (1 of 4)", "ok no no -"),
        (quorum(2), [1, 2, 1, 2], "2 of 2 needed (3 of 4, 2 agree)", "ok ok ok -"),
        (quorum(3), [1, 2, 3, 4, 5], "1 of 3 needed (4 of 5, 1 agree)", "ok ok ok ok -"),
        (quorum(2, vote=lambda value: value % 4), [1, 3, 2], "2 of 2 needed (2 of 3, 2 agree)", "ok ok -"),
        (ended(), [-1, 1], "1 of 0 needed (1 of 2)", "no ok"),
        (ended(2), [-1, 1], "1 of 2 needed (1 of 2)", "no ok"),
    ],
)  # fmt: skip
async def test_a_join_decides_as_soon_as_no_further_branch_can_change_it(
    join: Join, items: list[int], said: str, outcomes: str
) -> None:
    hooks = Hooks(of_double)
    fan = Fan(max=9, concurrency=1, join=join)
    machine: Workflow[SpreadContext, None] = Workflow(spread(fan), [hooks], observers=())
    result = await machine.run(SpreadContext(items), run_id="p1")
    assert result.state == ("done" if hooks.results[0].decided.ok else "short")
    stored = await machine.runs.journal.load("p1")
    (results,) = hooks.results
    found = ["-" if not one.started else "ok" if one.ok else "no" for one in results]
    told = results.decided.explain().removeprefix("joined: ").replace(" branches completed", "")
    assert (told, " ".join(found)) == (said, outcomes)
    assert joined(results) is results.decided
    kinds = [one.kind for one in stored]
    assert kinds.index("fan") < kinds.index("joined") < kinds.index("transition")


async def test_agents_and_workflows_are_branches_and_a_failure_is_a_value() -> None:
    def model(request: Request) -> Any:
        if request.messages[-1].text == "bad":
            raise RuntimeError("the model is broken")
        return f"read {request.messages[-1].text}"

    reader = Agent(FunctionLLM(model), name="reader", observers=())
    inner = workflow(Fan(max=2), lambda text: Branch(reader, text))
    outer = workflow(
        Fan(max=3, join=ended()),
        lambda item: Branch(reader, item) if isinstance(item, str) else Branch(inner, SpreadContext(item)),
    )
    result = await outer.run(SpreadContext(["a", "bad", ["b", "c"]]), run_id="p1", tags={"team": "ops"})
    assert result.output == ["read a", None, ["read b", "read c"]]
    children = {head.run_id: head async for head in outer.runs.journal.runs(parent_run_id="p1")}
    assert {name: head.outcome for name, head in children.items()} == {
        "p1:spread.0:0": "completed",
        "p1:spread.0:1": "failed",
        "p1:spread.0:2": "completed",
    }
    assert [head.run_id async for head in outer.runs.journal.runs(parent_run_id="p1:spread.0:2")]
    assert all(dict(head.tags) == {"team": "ops"} for head in children.values())
    assert result.usage == Usage(3, 3)


async def test_the_decision_is_durable_before_a_branch_that_is_not_needed_is_cancelled() -> None:
    order: list[tuple[str, str]] = []

    class Watched(MemoryJournal):
        def append(self, lease: Any, drafts: Any, blobs: Any = None) -> Any:
            order.extend((lease.run_id, one.kind) for one in drafts)
            return super().append(lease, drafts, blobs)

    asked = asyncio.Event()

    async def model(request: Request) -> Any:
        if request.messages[-1].text == "slow":
            asked.set()
            await asyncio.Event().wait()
        await asked.wait()
        return "quick"

    facts: list[BranchEnded] = []

    class Watch:
        def observe(self, fact: Any) -> None:
            if isinstance(fact, BranchEnded):
                facts.append(fact)

    reader = Agent(FunctionLLM(model), name="reader", observers=())
    fan = Fan(max=9, concurrency=2, join=ANY)
    machine = workflow(fan, lambda text: Branch(reader, text), journal=Watched(), observers=[Watch()])
    result = await machine.run(SpreadContext(["slow", "quick", "never"]), run_id="p1")
    assert result.output == [None, "quick", None]
    assert order.index(("p1", "fan")) < order.index(("p1:spread.0:0", "transition"))
    assert order.index(("p1", "joined")) < order.index(("p1:spread.0:0", "ended"))
    head = await machine.runs.journal.head("p1:spread.0:0")
    assert (head.outcome, head.status) == ("cancelled", "ended")
    assert [(one.index, one.outcome, one.state, one.agent) for one in facts] == [
        (1, "completed", "spread", "spreader"),
        (2, "not_started", "spread", "spreader"),
        (0, "cancelled", "spread", "spreader"),
    ]
    assert [head.run_id async for head in machine.runs.journal.runs(parent_run_id="p1")] != []


@pytest.mark.parametrize(
    ("effect", "outcome", "effects"),
    [
        ("irreversible", "completed", ["quick under p1:spread.0:1:1:0", "slow under p1:spread.0:0:1:0"]),
        (
            "compensable",
            "completed",
            [
                "quick under p1:spread.0:1:1:0",
                "slow under p1:spread.0:0:1:0",
                "undone slow under p1:spread.0:0:1:0",
            ],
        ),
        ("idempotent", "cancelled", ["quick under p1:spread.0:1:1:0"]),
    ],
)
async def test_a_call_whose_effect_lasts_finishes_and_only_a_compensable_one_is_undone(
    effect: str, outcome: str, effects: list[str]
) -> None:
    gate = Gate()
    book = gate.tool(effect)
    machine = workflow(Fan(max=2, join=ANY), lambda name: Branch(book, {"name": name}))
    running = asyncio.ensure_future(machine.run(SpreadContext(["slow", "quick"]), run_id="p1"))
    await gate.started.wait()
    await until(lambda: decided(machine))
    gate.open.set()
    result = await running
    assert (result.outcome, gate.effects) == (Outcome.COMPLETED, effects)
    assert (await machine.runs.journal.head("p1:spread.0:0")).outcome == outcome


async def test_an_agent_that_is_not_needed_finishes_its_irreversible_call_first() -> None:
    gate = Gate()
    script = [call("book", name="slow"), "booked"]
    slow = Agent(ScriptedLLM(script), tools=[gate.tool("irreversible")], observers=())
    targets = {"slow": slow, "quick": Agent(ScriptedLLM(["quick"]), observers=())}
    machine = workflow(Fan(max=2, join=ANY), lambda name: Branch(targets[name], name))
    running = asyncio.ensure_future(machine.run(SpreadContext(["slow", "quick"]), run_id="p1"))
    await gate.started.wait()
    await until(lambda: decided(machine))
    gate.open.set()
    result = await running
    assert (result.output, gate.effects) == ([None, "quick"], ["slow under p1:spread.0:0:1:0"])
    records = await machine.runs.journal.load("p1:spread.0:0")
    assert [one.body["outcome"] for one in records if one.kind in {"done", "ended"}] == ["ok", "cancelled"]


async def test_an_undo_that_fails_asks_a_person() -> None:
    gate = Gate()
    gate.undo_fails = 1
    book = gate.tool("compensable")
    machine = workflow(Fan(max=2, join=ANY), lambda name: Branch(book, {"name": name}))
    running = asyncio.ensure_future(machine.run(SpreadContext(["slow", "quick"]), run_id="p1"))
    await gate.started.wait()
    await until(lambda: decided(machine))
    gate.open.set()
    await until(lambda: questions(machine, 1))
    (question,) = await machine.questions("p1")
    assert (question.run_id, question.why) == ("p1:spread.0:0.undo", "unknown_effect")
    await machine.approve(question.run_id, question.key, digest=question.digest, by="me")
    assert (await running).outcome is Outcome.COMPLETED
    assert gate.effects[-1] == "undone slow under p1:spread.0:0:1:0"


async def test_at_most_so_many_branches_work_and_one_that_waits_for_a_person_does_not_count() -> None:
    gate = Gate()
    book = gate.tool("idempotent")
    asks = gate.tool("irreversible", approval=True)

    def branch(name: str) -> Branch[Any]:
        return Branch(asks if name.startswith("ask") else book, {"name": name})

    machine = workflow(Fan(max=9, concurrency=2), branch)
    items = ["ask1", "ask2", "ask3", "slow1", "slow2", "slow3"]
    running = asyncio.ensure_future(machine.run(SpreadContext(items), run_id="p1"))
    await until(lambda: gate.running == 2)
    await until(lambda: questions(machine, 3))
    gate.open.set()
    await until(lambda: len(gate.effects) == 3 and not gate.running)
    for question in await machine.questions("p1"):
        await machine.approve(question.run_id, question.key, by="me")
    result = await running
    assert (result.output, gate.most) == (items, 2)


async def test_the_clock_of_the_run_stands_while_all_branches_wait() -> None:
    clock = FakeClock()
    gate = Gate()
    asks = gate.tool("irreversible", approval=True)
    machine = workflow(
        Fan(max=9, concurrency=1),
        lambda name: Branch(asks, {"name": name}),
        runtime=Runtime(clock=clock, observers=()),
    )
    running = asyncio.ensure_future(machine.run(SpreadContext(["a", "b"]), run_id="p1"))
    await clock.advance(0)
    await until(lambda: questions(machine, 2))
    await clock.advance(3600)
    for question in await machine.questions("p1"):
        await machine.approve(question.run_id, question.key, by="me")
    (transition,) = (await running).transitions
    assert transition.dwell < 1


async def test_a_run_is_left_with_the_questions_of_its_branches_and_continues_with_the_answers() -> None:
    gate = Gate()
    asks = gate.tool("irreversible", approval=True)
    book = gate.tool("irreversible")

    def branch(name: str) -> Branch[Any]:
        return Branch(asks if name.startswith("ask") else book, {"name": name})

    machine = workflow(Fan(max=9, concurrency=1), branch)
    left = await machine.run(SpreadContext(["ask1", "b", "ask2"]), run_id="p1", wait="never")
    assert (left.waiting, len(left.questions)) == (True, 2)
    assert gate.effects == ["b under p1:spread.0:1:1:0"]
    answers = {one.id: True for one in left.questions}
    result = await machine.resume("p1", answers=answers, wait="never")
    assert (result.output, sorted(gate.effects)) == (
        ["ask1", "b", "ask2"],
        [f"{name} under p1:spread.0:{at}:1:0" for at, name in [(0, "ask1"), (2, "ask2"), (1, "b")]],
    )


async def test_a_rejected_call_is_a_rejected_branch() -> None:
    asks = Gate().tool("irreversible", approval=True)
    machine = workflow(Fan(max=9, join=ended()), lambda name: Branch(asks, {"name": name}))
    left = await machine.run(SpreadContext(["a"]), run_id="p1", wait="never")
    (question,) = left.questions
    await machine.resume("p1", answers={question.id: False}, wait="never")
    head = await machine.runs.journal.head("p1:spread.0:0")
    assert (head.outcome, head.run_id) == ("rejected", "p1:spread.0:0")


async def test_a_cancelled_run_stops_its_branches_and_decides_nothing() -> None:
    gate = Gate()
    book = gate.tool("idempotent")
    machine = workflow(Fan(max=9, join=ANY), lambda name: Branch(book, {"name": name}))
    running = asyncio.ensure_future(machine.run(SpreadContext(["slow1", "slow2"]), run_id="p1"))
    await until(lambda: gate.running == 2)
    machine.cancel("p1")
    result = await running
    assert (result.outcome, result.state, gate.effects) == (Outcome.CANCELLED, "failed", [])
    assert [one.outcome async for one in machine.runs.journal.runs(parent_run_id="p1")] == ["cancelled"] * 2
    assert "joined" not in [one.kind for one in await machine.runs.journal.load("p1")]


@pytest.mark.parametrize("concurrency", [1, 3, 0])
async def test_a_branch_gets_its_share_of_the_rest_and_the_sum_stays_within_the_budget(
    concurrency: int,
) -> None:
    seen: list[int] = []

    def model(request: Request) -> Any:
        return Response("done", usage=Usage(100, 10))

    reader = Agent(FunctionLLM(model), name="reader", observers=())
    machine = workflow(
        Fan(max=9, concurrency=concurrency, join=ended()),
        lambda text: Branch(reader, text),
        limits=Limits(max_iterations=0, max_input_tokens=700),
    )
    result = await machine.run(SpreadContext(list("abcdefghi")), run_id="p1")
    spent = 0
    async for head in machine.runs.journal.runs(parent_run_id="p1"):
        created = (await machine.runs.journal.load(head.run_id))[0].body
        seen.append(created["context"]["limits"]["max_input_tokens"])
        spent += 100 * (head.outcome == "completed")
    assert result.usage.input_tokens == spent
    assert 700 <= spent <= 800, "at most one request more than the limit"
    assert 1 <= min(seen) <= max(seen) <= 700
    assert (await machine.resume("p1")).usage == result.usage


@pytest.mark.parametrize(
    ("fan", "items", "said"),
    [
        (Fan(max=1), [1, 2], "there are 2 branches in 'spread'; its Fan allows at most 1"),
    ],
)
async def test_what_cannot_work_is_said(fan: Fan, items: list[int], said: str) -> None:
    result = await workflow(fan, of_double).run(SpreadContext(items))
    assert (result.outcome, str(result.error)) == (Outcome.FAILED, said)


async def test_an_item_without_a_json_form_and_another_target_are_refused() -> None:
    machine = workflow(Fan(max=1), lambda _: Branch(double, {"number": object()}))
    result = await machine.run(SpreadContext([1]))
    assert (result.outcome, str(result.error)[:46]) == (
        Outcome.FAILED,
        "the item of a branch of 'double' has no JSON f",
    )
    with pytest.raises(ConfigError, match=r"the context has no JSON form: .*object"):
        await machine.run(SpreadContext([object()]))
    with pytest.raises(ConfigError, match="the context is a list; give a SpreadContext"):
        await machine.run([1])  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="the target of a branch is a function; give an Agent, a Workflow, or a tool"
    ):
        Branch(of_double, {})  # type: ignore[call-overload]
    reader = Agent(ScriptedLLM([]), observers=())
    with pytest.raises(ConfigError, match="give Branch\\(agent, prompt\\)"):
        Branch(reader.as_tool("read", "Read."), {"task": "a"})
    outside: Run[Any, Any] = Run(machine.machine, "r", SpreadContext(), None)
    with pytest.raises(ConfigError, match="only in the enter hook"):
        await fan_out(outside, [])


REVIEWED = LLM_LOOP.extend(
    name="panel_loop",
    states=("check",),
    events=("checked",),
    without=[("handle_completion", "completion_success")],
    edges=(
        Edge("completion_success", ("handle_completion",), "check"),
        Edge("checked", ("check",), "finalize"),
        Edge("failure", ("check",), "terminate_error"),
    ),
    branches={"check": Fan(max=3)},
)


async def test_an_agent_has_branches_in_a_state_of_its_own_and_pays_for_them() -> None:
    checker = Agent(ScriptedLLM(["fine", "fine"]), name="checker", observers=())

    class Check:
        async def enter_check(self, run: Any) -> str:
            results = await fan_out(run, [Branch(checker, "a"), Branch(checker, "b")])
            run.ctx.output += f" ({', '.join(results.values)})"
            return "checked"

    agent = Agent(ScriptedLLM(["Two moons."]), graph=REVIEWED, hooks=[Check()], observers=())
    result = await agent.run("How many moons?", run_id="p1")
    assert (result.output, result.usage) == ("Two moons. (fine, fine)", Usage(3, 3))


@pytest.mark.parametrize(("join", "result"), [(ANY, "allow"), (first(3), "deny")])
async def test_a_decision_counts_as_a_guard_once(join: Join, result: str) -> None:
    registry = CollectorRegistry()
    machine = workflow(Fan(max=3, concurrency=1, join=join), of_double, observers=[Metrics(registry)])

    def counted() -> dict[str, float]:
        return {
            one.labels["result"]: one.value
            for family in registry.collect()
            for one in family.samples
            if one.name == "orchestrator_guard_evaluations_total" and one.labels["guard"] == "joined"
        }

    assert counted() == {"allow": 0.0, "deny": 0.0, "error": 0.0}
    await machine.run(SpreadContext([-1, 1, 2]), run_id="p1")
    await machine.resume("p1")
    assert counted() == {"allow": 0.0, "deny": 0.0, "error": 0.0, result: 1.0}


async def test_the_metric_of_branches_exists_at_0_and_counts_each_outcome() -> None:
    registry = CollectorRegistry()
    machine = workflow(Fan(max=3, concurrency=1, join=ANY), of_double, observers=[Metrics(registry)])

    def counted() -> dict[str, float]:
        samples = [one for family in registry.collect() for one in family.samples]
        return {
            f"{one.labels['agent']} {one.labels['state']} {one.labels['outcome']}": one.value
            for one in samples
            if one.name == "orchestrator_branches_total"
        }

    outcomes = [outcome.value for outcome in Outcome]
    assert counted() == {f"spreader spread {name}": 0.0 for name in [*outcomes, "not_started"]}
    await machine.run(SpreadContext([-1, 1, 2]), run_id="p1")
    await machine.resume("p1")
    assert {name: value for name, value in counted().items() if value} == {
        "spreader spread failed": 1.0,
        "spreader spread completed": 1.0,
        "spreader spread not_started": 1.0,
    }
