"""openai-agents: an Agent with a function tool under its Runner, its sessions in SQLite, its tracing off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import (  # type: ignore[import-not-found, unused-ignore]
    Agent,
    MaxTurnsExceeded,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    RunState,
    SQLiteSession,
    Usage,
    function_tool,
)
from agents.extensions.memory.advanced_sqlite_session import (  # type: ignore[import-not-found, unused-ignore]
    AdvancedSQLiteSession,
)
from agents.testing import ScriptedModel, assistant_message, function_call  # type: ignore[import-not-found, unused-ignore]

from tests.benchmarks.peers.features import probe
from tests.benchmarks.peers.features.probe import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, PROMPT, TOOL, World

UNABLE = {
    "graph": ("no", "a picture of agents, tools and handoffs (extra viz), not of the control flow"),
    "lint": ("no", "it has no graph"),
    "tokens": ("no", "its limit counts turns (max_turns)"),
    "metrics": ("no", "no metrics; it has tracing"),
    "parallel": ("no", "only the tools of a turn run concurrently; more is the host's asyncio code"),
}
QUIET = RunConfig(tracing_disabled=True)
USAGE = Usage(
    requests=1,
    input_tokens=INPUT_TOKENS,
    output_tokens=OUTPUT_TOKENS,
    total_tokens=INPUT_TOKENS + OUTPUT_TOKENS,
)


class ProbeModel(Model):  # type: ignore[misc, unused-ignore]
    """The model of a scenario."""

    def __init__(self, world: World, *, endless: bool = False, counts: bool = False) -> None:
        self._world = world
        self._endless = endless
        self._counts = counts

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> Any:  # noqa: A002
        """Answer. Every call of the tool so far is an item."""
        items = [] if isinstance(input, str) else input
        earlier = sum(one.get("type") == "function_call" for one in items)
        if self._counts:
            output = [assistant_message(str(len(items) or 1))]
        elif await self._world.model(earlier) or self._endless:
            output = [function_call(TOOL, "{}", call_id=f"c{earlier}")]
        else:
            output = [assistant_message(ANSWER)]
        return ModelResponse(output=output, usage=USAGE, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Never asked for."""
        raise NotImplementedError


def agent(world: World, *, asks: bool = False, sleeps: bool = False, **options: Any) -> Agent:
    """Return the agent of a scenario."""

    @function_tool(name_override=TOOL, needs_approval=asks)  # type: ignore[untyped-decorator, unused-ignore]
    async def pay() -> str:
        """Pay an invoice."""
        if sleeps:
            await world.sleep()
        return await world.tool()

    return Agent(name="agent", model=ProbeModel(world, **options), tools=[pay])


async def run(world: World) -> dict[str, Any]:
    """Start a run with a session, its store."""
    session = SQLiteSession("r", str(world.folder / "db"))
    result = await Runner.run(agent(world), PROMPT, session=session, run_config=QUIET)
    return {"output": result.final_output}


async def resume(world: World) -> dict[str, Any]:
    """Continue with the session in another process: no new input."""
    session = SQLiteSession("r", str(world.folder / "db"))
    result = await Runner.run(agent(world), [], session=session, run_config=QUIET)
    return {"output": result.final_output}


async def ask(world: World) -> dict[str, Any]:
    """Let a run end with a question, store its state, and die."""
    result = await Runner.run(agent(world, asks=True), PROMPT, run_config=QUIET)
    if not result.interruptions:
        return {"error": "the run ended without a question"}
    world.keep(result.to_state().to_string())
    world.die()
    return {}


async def answer(world: World) -> dict[str, Any]:
    """Answer in another process, with the stored state."""
    answering = agent(world, asks=True)
    state = await RunState.from_string(answering, world.kept())
    for item in state.get_interruptions():
        state.approve(item)
    result = await Runner.run(answering, state, run_config=QUIET)
    return {"output": result.final_output}


async def repeat(world: World) -> dict[str, Any]:
    """Run a model that repeats one call for ever, with a cap on turns that is far away."""
    try:
        await Runner.run(agent(world, endless=True), PROMPT, max_turns=probe.CAP, run_config=QUIET)
    except MaxTurnsExceeded:
        return {"ok": False, "observed": f"ended at the cap, after {world.count('model')} requests"}
    return {"ok": True, "observed": f"ended after {world.count('model')} requests"}


async def cancel(world: World) -> dict[str, Any]:
    """Cancel a run while its tool works."""
    return await world.cancel(Runner.run(agent(world, sleeps=True), PROMPT, run_config=QUIET))


async def stream(world: World) -> dict[str, Any]:
    """Read the text of the answer while it arrives."""
    model = ScriptedModel([[assistant_message("one two three")]])
    result = Runner.run_streamed(Agent(name="agent", model=model), PROMPT, run_config=QUIET)
    pieces = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    return {
        "ok": "".join(pieces) == "one two three",
        "observed": f"{len(pieces)} pieces of its own test double",
    }


async def fork(world: World) -> dict[str, Any]:
    """Continue a stored conversation from an earlier turn of the user, as a branch."""
    session = AdvancedSQLiteSession(session_id="r", db_path=str(world.folder / "db"), create_tables=True)
    asking = Agent(name="agent", model=ProbeModel(world, counts=True))
    seen = [
        (await Runner.run(asking, PROMPT, session=session, run_config=QUIET)).final_output for _ in range(2)
    ]
    await session.create_branch_from_turn(2)
    again = (await Runner.run(asking, PROMPT, session=session, run_config=QUIET)).final_output
    return {"ok": again == seen[1], "observed": "a branch of the session, at a turn of the user"}


async def handoff(world: World) -> dict[str, Any]:
    """Let one agent pass the conversation to another, which answers."""
    second = Agent(name="second", model=ScriptedModel([[assistant_message("from the second")]]))
    call = function_call("transfer_to_second", "{}", call_id="c")
    first = Agent(name="first", model=ScriptedModel([[call]]), handoffs=[second])
    result = await Runner.run(first, PROMPT, run_config=QUIET)
    return {"ok": result.final_output == "from the second", "observed": "Agent(handoffs=[…])"}


async def talk(world: World) -> dict[str, Any]:
    """Say something in a conversation; the answer is how many items the model sees."""
    session = SQLiteSession("c", str(world.folder / "db"))
    asking = Agent(name="agent", model=ProbeModel(world, counts=True))
    result = await Runner.run(asking, PROMPT, session=session, run_config=QUIET)
    return {"output": result.final_output}


async def vendors(world: World) -> dict[str, Any]:
    """Name the adapters of models beside OpenAI's own."""
    from importlib.util import find_spec

    adapters = [
        name for name in ("litellm", "any_llm") if find_spec(f"agents.extensions.models.{name}_model")
    ]
    return {
        "ok": True,
        "value": "LiteLLM" if adapters else "1",
        "observed": f"OpenAI, adapters: {', '.join(adapters)}",
    }


if __name__ == "__main__":
    probe.main(globals(), ("openai-agents",))
