"""Ours: `Agent` with its SQLite journal, its default guards and its metrics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from orchestrator import (
    Agent,
    Edge,
    Graph,
    Limits,
    Response,
    SqliteJournal,
    SqliteMemory,
    ToolCall,
    Usage,
    tool,
)
from orchestrator.branches import Branch, Fan, Workflow, fan_out, joined
from orchestrator.errors import GraphError, Held
from orchestrator.kernel.graph import mermaid
from orchestrator.llm.live_event import TextDelta
from orchestrator.llm.message import Message, Request
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.runtime.runs.origin import cut
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing import ScriptedLLM, call
from tests.benchmarks.peers.features import probe
from tests.benchmarks.peers.features.probe import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, PROMPT, TOOL, World

UNABLE: dict[str, tuple[str, str]] = {}
USAGE = Usage(INPUT_TOKENS, OUTPUT_TOKENS)
RUN = "r"


class Model:
    """The model of a scenario; an endless one calls the tool in every turn."""

    model = "scripted"

    def __init__(self, world: World, store: SqliteJournal | None, *, endless: bool = False) -> None:
        self._world = world
        self._store = store
        self._endless = endless

    async def complete(self, request: Request) -> Response:
        """Answer."""
        earlier = sum(one.role == "assistant" for one in request.messages)
        # A request begins beside the write of the turn before it. A model takes longer than that write.
        while self._store is not None and await self._unwritten(self._store, earlier):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if await self._world.model(earlier) or self._endless:
            return Response(None, (ToolCall(f"c{earlier}", TOOL, "{}"),), "tool_calls", USAGE)
        return Response(ANSWER, usage=USAGE)

    @staticmethod
    async def _unwritten(store: SqliteJournal, calls: int) -> bool:
        return sum(one.kind == "done" for one in await store.load(RUN)) < calls


def agent(world: World, **options: Any) -> Agent:
    """Return the agent of a scenario."""
    approval, endless = options.pop("approval", False), options.pop("endless", False)
    model = Model(world, options.pop("written", None), endless=endless)

    @tool(name=TOOL, approval=approval)
    async def pay() -> str:
        """Pay an invoice."""
        return await world.tool()

    return Agent(model, **{"tools": [pay], "observers": (), **options})


def journal(world: World) -> SqliteJournal:
    """Return the store."""
    return SqliteJournal(Path(world.folder) / "journal.db")


async def run(world: World) -> dict[str, Any]:
    """Start a durable run."""
    async with journal(world) as store:
        return {"output": (await agent(world, journal=store, written=store).run(PROMPT, run_id=RUN)).output}


async def resume(world: World) -> dict[str, Any]:
    """Resume it in another process; a question about an interrupted call is answered with the result."""
    async with journal(world) as store:
        resumed = agent(world, journal=store)
        task = asyncio.ensure_future(resumed.resume(RUN))
        asked = False
        try:
            while not (await asyncio.wait({task}, timeout=0.05))[0]:
                for question in [] if asked else await resumed.pending(RUN):
                    await resumed.respond(RUN, probe.RESULT, question.key, digest=question.digest, by="ann")
                    asked = True
            note = "; a person was asked whether the call took effect" if asked else ""
            return {"output": (await task).output, "note": note}
        except Held as refused:
            return {"refused": str(refused)}


async def ask(world: World) -> dict[str, Any]:
    """Let a run come to a question, and die."""
    async with journal(world) as store:
        asking = agent(world, journal=store, approval=True)
        task = asyncio.ensure_future(asking.run(PROMPT, run_id=RUN))
        while not (await asyncio.wait({task}, timeout=0.05))[0]:
            if await asking.pending(RUN):
                world.die()
        return {"error": "the run ended without a question"}


async def answer(world: World) -> dict[str, Any]:
    """Answer the question in another process."""
    async with journal(world) as store:
        answering = agent(world, journal=store, approval=True)
        (question,) = await answering.pending(RUN)
        await answering.approve(RUN, question.key, digest=question.digest, by="ann")
        return {"output": (await answering.resume(RUN)).output}


async def graph(world: World) -> dict[str, Any]:
    """Print the control flow of the agent."""
    text = mermaid(LLM_LOOP)
    return {
        "ok": "await_llm --> evaluate_response" in text,
        "observed": f"Mermaid, {len(LLM_LOOP.rows)} edges",
    }


async def lint(world: World) -> dict[str, Any]:
    """Build a graph with a state that cannot be reached."""
    try:
        LLM_LOOP.extend(states=["lost"])
    except GraphError as error:
        return {"ok": "unreachable" in str(error), "observed": f"refused: {error.problems[0]}"}
    return {"ok": False, "observed": "accepted"}


async def tokens(world: World) -> dict[str, Any]:
    """Run a model that calls its tool for ever under a limit of tokens."""
    limits = Limits(max_input_tokens=probe.TOKENS, max_repeated_success=0, max_no_progress=0)
    result = await agent(world, endless=True, limits=limits).run(PROMPT)
    count = world.count("model")
    return {"ok": count <= 3, "observed": f"ended as {result.outcome} after {count} requests"}


async def repeat(world: World) -> dict[str, Any]:
    """Run a model that repeats one call for ever, with a cap on turns that is far away."""
    result = await agent(world, endless=True, limits=Limits(max_iterations=probe.CAP)).run(PROMPT)
    count = world.count("model")
    return {"ok": count < probe.CAP, "observed": f"ended as {result.outcome} after {count} requests"}


async def metrics(world: World) -> dict[str, Any]:
    """Run with the library's own metrics."""
    registry = CollectorRegistry()
    await agent(world, observers=[Metrics(registry)]).run(PROMPT)
    moved = {one.name for one in registry.collect() if any(sample.value for sample in one.samples)}
    return {
        "ok": any("transition" in name for name in moved),
        "observed": f"{len(moved)} Prometheus metrics, transitions among them",
    }


async def cancel(world: World) -> dict[str, Any]:
    """Cancel a run while its tool works."""

    @tool(name=TOOL)
    async def pay() -> str:
        """Pay an invoice."""
        await world.sleep()
        return ""

    return await world.cancel(agent(world, tools=[pay]).run(PROMPT))


async def stream(world: World) -> dict[str, Any]:
    """Read the text of the answer while it arrives."""
    streaming = Agent(ScriptedLLM(["one two three"]), observers=())
    async with streaming.stream(PROMPT) as facts:
        pieces = [event.text async for event in facts if isinstance(event, TextDelta)]
    return {"ok": len(pieces) > 1, "observed": f"{len(pieces)} pieces"}


async def fork(world: World) -> dict[str, Any]:
    """Continue a stored run from an earlier turn as another run, as `orchestrator runs fork` does."""
    async with journal(world) as store:
        forking = agent(world, journal=store)
        await forking.run(PROMPT, run_id=RUN)
        origin = cut(RUN, await store.load(RUN), 1)
        before = world.count("model")
        again = await forking.run(list(origin.messages), run_id="fork")
        asked = world.count("model") - before
        return {"ok": again.output == ANSWER and asked == 1, "observed": f"a new run, {asked} request"}


class _State(StrEnum):
    ADDING = "adding"
    ADDED = "added"
    FAILED = "failed"


class _Event(StrEnum):
    ADD = "add"
    FAIL = "fail"


@dataclass
class _Adding:
    numbers: list[int]
    results: list[int] = field(default_factory=list)
    iteration: int = 0


async def parallel(world: World) -> dict[str, Any]:
    """Run two branches at the same time and join them."""
    both = asyncio.Barrier(2)

    @tool(effect="pure")
    async def branch(number: int) -> int:
        """Return a number."""
        await asyncio.wait_for(both.wait(), 5)  # passes only if both run at the same time
        return number

    class Hooks:
        async def enter_adding(self, run: Any) -> _Event:
            """Start the branches."""
            results = await fan_out(run, [Branch(branch, {"number": one}) for one in run.ctx.numbers])
            run.ctx.results = results.values
            return _Event.ADD if joined(results).ok else _Event.FAIL

    graph = Graph(
        name="adding",
        states=_State,
        events=_Event,
        initial=_State.ADDING,
        terminal=frozenset((_State.ADDED, _State.FAILED)),
        failure=_Event.FAIL,
        context=_Adding,
        edges=(
            Edge(_Event.ADD, (_State.ADDING,), _State.ADDED),
            Edge(_Event.FAIL, (_State.ADDING,), _State.FAILED),
        ),
        branches={_State.ADDING: Fan(max=2)},
    )
    adding: Workflow[_Adding, list[int]] = Workflow(
        graph, [Hooks()], output=lambda ctx: ctx.results, name="adding", observers=()
    )
    result = await adding.run(_Adding([1, 2]))
    return {"ok": result.output == [1, 2], "observed": "two branches, joined"}


async def handoff(world: World) -> dict[str, Any]:
    """Let one agent pass the conversation to another, which answers."""
    second = Agent(ScriptedLLM(["from the second"]), name="second", observers=())
    first = Agent(ScriptedLLM([call("transfer_to_second")]), name="first", handoffs=[second], observers=())
    result = await first.run(PROMPT)
    return {
        "ok": (result.output, result.agent) == ("from the second", "second"),
        "observed": "Agent(handoffs=[…])",
    }


async def talk(world: World) -> dict[str, Any]:
    """Say something in a conversation; the answer is how many messages the model sees."""

    class Counting:
        model = "counting"

        async def complete(self, request: Request) -> Response:
            return Response(str(len(request.messages)))

    memory = SqliteMemory(Path(world.folder) / "memory.db")
    talking = Agent(Counting(), observers=(), memory=memory)
    result = await talking.run([Message("user", PROMPT)], conversation_id="c")
    return {"output": result.output}


async def vendors(world: World) -> dict[str, Any]:
    """Count the vendors of models with an adapter of their own."""
    from pydantic_ai.models.test import TestModel

    from orchestrator import providers

    names = [name for name in ("OpenAI", "Anthropic", "Google", "Mistral") if hasattr(providers, name)]
    result = await Agent(providers.PydanticAIModel(TestModel()), name="vendors", observers=()).run("Hello.")
    return {
        "ok": result.outcome == "completed",
        "value": f"{len(names)}, pydantic-ai",
        "observed": f"{', '.join(names)}, servers that speak OpenAI's; with the extra pydantic-ai its models",
    }


if __name__ == "__main__":
    probe.main(globals(), ("fsm-orchestrator",))
