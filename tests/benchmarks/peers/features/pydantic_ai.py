"""pydantic-ai: an Agent with a plain tool and a FunctionModel. Durable execution by other engines is not tried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pydantic_ai  # type: ignore[import-not-found, unused-ignore]
from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider
from pydantic_ai import (  # type: ignore[import-not-found, unused-ignore]
    Agent,
    DeferredToolRequests,
    Tool,
    UsageLimits,
)
from pydantic_ai.exceptions import UsageLimitExceeded  # type: ignore[import-not-found, unused-ignore]
from pydantic_ai.messages import (  # type: ignore[import-not-found, unused-ignore]
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel  # type: ignore[import-not-found, unused-ignore]
from pydantic_ai.models.instrumented import (  # type: ignore[import-not-found, unused-ignore]
    InstrumentationSettings,
)
from pydantic_ai.tools import DeferredToolResults  # type: ignore[import-not-found, unused-ignore]
from pydantic_ai.usage import RequestUsage  # type: ignore[import-not-found, unused-ignore]
from pydantic_graph import GraphBuilder, StepContext, reduce_list_append  # type: ignore[import-not-found, unused-ignore]

from tests.benchmarks.peers.features import probe
from tests.benchmarks.peers.features.probe import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, PROMPT, TOOL, World

_ENGINES = (
    "no store of its own; durable with DBOS, Prefect or Temporal (pydantic_ai.durable_exec), not measured"
)
UNABLE = {
    "run": ("engine", _ENGINES),
}
USAGE = RequestUsage(input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS)


def agent(
    world: World, *, endless: bool = False, asks: bool = False, sleeps: bool = False, **options: Any
) -> Agent:
    """Return the agent of a scenario."""

    async def answer_of(messages: list[Any], info: AgentInfo) -> Any:
        earlier = sum(isinstance(one, ModelResponse) for one in messages)
        calls = await world.model(earlier) or endless
        parts = [ToolCallPart(TOOL, {}, f"c{earlier}")] if calls else [TextPart(ANSWER)]
        return ModelResponse(parts=parts, usage=USAGE)

    async def pay() -> str:
        """Pay an invoice."""
        if sleeps:
            await world.sleep()
        return await world.tool()

    tools = [Tool(pay, name=TOOL, requires_approval=asks)]
    output = [str, DeferredToolRequests] if asks else str
    return Agent(FunctionModel(answer_of), tools=tools, output_type=output, **options)


async def ask(world: World) -> dict[str, Any]:
    """Let a run end with a question, store its messages, and die."""
    result = await agent(world, asks=True).run(PROMPT)
    if not isinstance(result.output, DeferredToolRequests):
        return {"error": "the run ended without a question"}
    world.keep(result.all_messages_json().decode())
    world.die()
    return {}


async def answer(world: World) -> dict[str, Any]:
    """Answer in another process, with the stored messages."""
    history = ModelMessagesTypeAdapter.validate_json(world.kept())
    results = DeferredToolResults(approvals={"c0": True})
    result = await agent(world, asks=True).run(message_history=history, deferred_tool_results=results)
    return {"output": result.output}


async def graph(world: World) -> dict[str, Any]:
    """Print the control flow: its agent's graph has no public name, a graph of one's own has."""
    public = [name for name in dir(pydantic_ai) if "graph" in name.lower() and not name.startswith("_")]
    text = _two_steps().render()
    if public:
        return {"ok": True, "observed": ", ".join(public)}
    ok = "first" in text
    return {
        "ok": False,
        "value": "own graphs" if ok else "no",
        "observed": "graphs of pydantic_graph, not the agent's",
    }


def _two_steps(*, orphan: bool = False) -> Any:
    builder = GraphBuilder(output_type=int)

    @builder.step  # type: ignore[untyped-decorator, unused-ignore]
    async def first(context: StepContext[None, None, None]) -> int:
        return 1

    @builder.step  # type: ignore[untyped-decorator, unused-ignore]
    async def lost(context: StepContext[None, None, int]) -> int:
        return 2

    builder.add(
        builder.edge_from(builder.start_node).to(first), builder.edge_from(first).to(builder.end_node)
    )
    if orphan:
        builder.add(builder.edge_from(lost).to(builder.end_node))
    return builder.build()


async def lint(world: World) -> dict[str, Any]:
    """Build a graph with a state that cannot be reached."""
    try:
        _two_steps(orphan=True)
    except Exception as error:  # noqa: BLE001  the error is the observation
        return {"ok": True, "observed": f"refused: {type(error).__name__} (pydantic_graph)"}
    return {"ok": False, "observed": "accepted"}


async def _limited(world: World, limits: UsageLimits) -> str:
    try:
        await agent(world, endless=True).run(PROMPT, usage_limits=limits)
    except UsageLimitExceeded as error:
        return f"ended by {type(error).__name__} after {world.count('model')} requests"
    return "not ended"


async def tokens(world: World) -> dict[str, Any]:
    """Run a model that calls its tool for ever under a limit of tokens."""
    said = await _limited(world, UsageLimits(total_tokens_limit=probe.TOKENS))
    return {"ok": world.count("model") <= 3, "observed": said}


async def repeat(world: World) -> dict[str, Any]:
    """Run a model that repeats one call for ever, with a cap on requests that is far away."""
    said = await _limited(world, UsageLimits(request_limit=probe.CAP))
    return {"ok": world.count("model") < probe.CAP, "observed": said}


async def metrics(world: World) -> dict[str, Any]:
    """Run with the library's own metrics, which go to OpenTelemetry."""
    names: set[str] = set()

    class Meter(NoOpMeter):
        def create_histogram(self, name: str, *rest: Any, **options: Any) -> Any:
            names.add(name)
            return super().create_histogram(name, *rest, **options)

    class Meters(NoOpMeterProvider):
        def get_meter(self, name: str, *rest: Any, **options: Any) -> Any:
            return Meter(name)

    settings = InstrumentationSettings(meter_provider=Meters())
    measured = agent(world)
    measured.instrument = settings
    await measured.run(PROMPT)
    transitions = any("transition" in name for name in names)
    value = "yes" if transitions else "tokens" if names else "no"
    return {"ok": transitions, "value": value, "observed": f"OpenTelemetry: {', '.join(sorted(names))}"}


async def cancel(world: World) -> dict[str, Any]:
    """Cancel a run while its tool works."""
    return await world.cancel(agent(world, sleeps=True).run(PROMPT))


async def stream(world: World) -> dict[str, Any]:
    """Read the text of the answer while it arrives."""

    async def speak(messages: list[Any], info: AgentInfo) -> AsyncIterator[str]:
        for word in ("one", " two", " three"):
            yield word

    async with Agent(FunctionModel(stream_function=speak)).run_stream(PROMPT) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    return {"ok": len(pieces) > 1, "observed": f"{len(pieces)} pieces"}


async def fork(world: World) -> dict[str, Any]:
    """Run again from the first messages of a run, which the host has kept."""
    result = await agent(world).run(PROMPT)
    world.keep(result.all_messages_json().decode())
    history = ModelMessagesTypeAdapter.validate_json(world.kept())[:3]
    before = world.count("model")
    again = await agent(world).run(message_history=history)
    asked = world.count("model") - before
    return {"ok": again.output == ANSWER and asked == 1, "observed": f"from stored messages, {asked} request"}


async def parallel(world: World) -> dict[str, Any]:
    """Run two branches of a pydantic_graph at the same time and join them."""
    both = asyncio.Barrier(2)
    builder = GraphBuilder(output_type=list)

    @builder.step  # type: ignore[untyped-decorator, unused-ignore]
    async def start(context: StepContext[None, None, None]) -> list[int]:
        return [1, 2]

    @builder.step  # type: ignore[untyped-decorator, unused-ignore]
    async def branch(context: StepContext[None, None, int]) -> int:
        await asyncio.wait_for(both.wait(), 5)  # passes only if both run at the same time
        return int(context.inputs)

    join = builder.join(reduce_list_append, initial_factory=list)
    builder.add(
        builder.edge_from(builder.start_node).to(start),
        builder.edge_from(start).map().to(branch),
        builder.edge_from(branch).to(join),
        builder.edge_from(join).to(builder.end_node),
    )
    results = await builder.build().run()
    return {"ok": sorted(results) == [1, 2], "observed": "two branches, joined (pydantic_graph)"}


async def handoff(world: World) -> dict[str, Any]:
    """Let one agent end with an output function that runs another agent, which answers."""

    def answering(*parts: Any) -> FunctionModel:
        return FunctionModel(lambda messages, info: ModelResponse(parts=list(parts)))

    second = Agent(answering(TextPart("from the second")))

    async def to_second(prompt: str) -> str:
        """Let the second agent answer."""
        return str((await second.run(prompt)).output)

    call = ToolCallPart("final_result", {"prompt": PROMPT})
    result = await Agent(answering(call), output_type=to_second).run(PROMPT)
    return {"ok": result.output == "from the second", "observed": "an output function runs the second agent"}


async def talk(world: World) -> dict[str, Any]:
    """Say something in a conversation; the answer is how many messages the model sees."""

    async def count(messages: list[Any], info: AgentInfo) -> Any:
        return ModelResponse(parts=[TextPart(str(len(messages)))])

    history = ModelMessagesTypeAdapter.validate_json(world.kept() or "[]")
    result = await Agent(FunctionModel(count)).run(PROMPT, message_history=history)
    world.keep(result.all_messages_json().decode())
    return {"output": result.output}


async def vendors(world: World) -> dict[str, Any]:
    """Count the modules of providers."""
    folder = Path(pydantic_ai.__file__).parent / "providers"
    names = sorted(file.stem for file in folder.glob("[a-z]*.py"))
    return {"ok": True, "value": str(len(names)), "observed": "modules of pydantic_ai.providers"}


if __name__ == "__main__":
    probe.main(globals(), ("pydantic-ai-slim",))
