"""Burr: an application of actions with its SQLite persister, as its documentation builds an asynchronous one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from burr.core import (  # type: ignore[import-not-found, unused-ignore]
    Application,
    ApplicationBuilder,
    State,
    action,
    default,
    expr,
)
from burr.core.action import streaming_action  # type: ignore[import-not-found, unused-ignore]
from burr.integrations.persisters.b_aiosqlite import (  # type: ignore[import-not-found, unused-ignore]
    AsyncSQLitePersister,
)

from tests.benchmarks.peers.features import probe
from tests.benchmarks.peers.features.probe import ANSWER, PROMPT, World

UNABLE = {
    "tokens": ("no", "tokens and limits are the user's code"),
    "repeat": ("no", "it has no cap or guard: the user's conditions decide"),
    "metrics": ("no", "no metrics in the package; it has tracing (its tracker, OpenTelemetry)"),
    "handoff": ("no", "it has no agents, only actions"),
    "vendors": ("0", "models are the user's code"),
}
START: dict[str, Any] = {"messages": [PROMPT]}
RUN = "r"


@action(reads=["messages"], writes=["messages", "calls"])  # type: ignore[untyped-decorator, unused-ignore]
async def ask_model(state: State, world: World) -> State:
    """Ask the model."""
    calls = await world.model(len(state["messages"]) // 2)
    return state.append(messages="call" if calls else ANSWER).update(calls=calls)


@action(reads=["messages"], writes=["messages"])  # type: ignore[untyped-decorator, unused-ignore]
async def pay(state: State, world: World) -> State:
    """Run the tool."""
    return state.append(messages=await world.tool())


@action(reads=["messages"], writes=["answer"])  # type: ignore[untyped-decorator, unused-ignore]
async def answering(state: State) -> State:
    """Return the answer."""
    return state.update(answer=state["messages"][-1])


def builder(world: World) -> ApplicationBuilder:
    """Return the agent of a scenario."""
    return (
        ApplicationBuilder()
        .with_actions(ask_model=ask_model.bind(world=world), pay=pay.bind(world=world), answering=answering)
        .with_transitions(
            ("ask_model", "pay", expr("calls")), ("ask_model", "answering", default), ("pay", "ask_model")
        )
    )


async def _stored(world: World, persister: Any, name: str = RUN, **origin: Any) -> Application:
    return await (
        builder(world)
        .with_identifiers(app_id=name)
        .initialize_from(
            persister,
            resume_at_next_action=True,
            default_state=START,
            default_entrypoint="ask_model",
            **origin,
        )
        .with_state_persister(persister)
        .abuild()
    )


def _opened(world: World) -> Any:
    return AsyncSQLitePersister.from_values(db_path=str(world.folder / "db"))


async def run(world: World) -> dict[str, Any]:
    """Start a durable application, or continue it in another process."""
    async with _opened(world) as persister:
        await persister.initialize()
        application = await _stored(world, persister)
        _, _, state = await application.arun(halt_after=["answering"])
        return {"output": state["answer"]}


resume = run


async def ask(world: World) -> dict[str, Any]:
    """Stop in front of the tool, and die."""
    async with _opened(world) as persister:
        await persister.initialize()
        await (await _stored(world, persister)).arun(halt_before=["pay"], halt_after=["answering"])
        world.die()
        return {}


answer = run


async def graph(world: World) -> dict[str, Any]:
    """List the control flow of the agent; pictures need graphviz, which is an extra."""
    application = builder(world).with_state(**START).with_entrypoint("ask_model").build()
    edges = [(one.from_.name, one.to.name, one.condition.name) for one in application.graph.transitions]
    return {
        "ok": ("ask_model", "pay") in {one[:2] for one in edges},
        "observed": f"{len(edges)} transitions as data",
    }


async def lint(world: World) -> dict[str, Any]:
    """Build a graph with a state that cannot be reached."""
    try:
        builder(world).with_actions(lost=answering).with_state(**START).with_entrypoint("ask_model").build()
    except ValueError as error:
        return {"ok": True, "observed": f"refused: {error}"}
    return {"ok": False, "observed": "accepted"}


async def cancel(world: World) -> dict[str, Any]:
    """Cancel a run while its tool works."""

    @action(reads=[], writes=["messages"])  # type: ignore[untyped-decorator, unused-ignore]
    async def sleeping(state: State) -> State:
        await world.sleep()
        return state

    application = (
        ApplicationBuilder().with_actions(sleeping).with_state(**START).with_entrypoint("sleeping").build()
    )
    return await world.cancel(application.arun(halt_after=["sleeping"]))


async def stream(world: World) -> dict[str, Any]:
    """Read the text of the answer while it arrives."""

    @streaming_action(reads=[], writes=["answer"])  # type: ignore[untyped-decorator, unused-ignore]
    async def speak(state: State) -> AsyncGenerator[Any, None]:
        for word in ("one", "two", "three"):
            yield {"answer": word}, None
        yield {"answer": "one two three"}, state.update(answer="one two three")

    application = (
        ApplicationBuilder().with_actions(speak).with_state(**START).with_entrypoint("speak").build()
    )
    _, container = await application.astream_result(halt_after=["speak"])
    pieces = [piece async for piece in container]
    return {"ok": len(pieces) > 1, "observed": f"{len(pieces)} pieces, yielded by the user's action"}


async def fork(world: World) -> dict[str, Any]:
    """Continue an application from an earlier step as another one."""
    async with _opened(world) as persister:
        await persister.initialize()
        await (await _stored(world, persister)).arun(halt_after=["answering"])
        before = world.count("model")
        saved = [await persister.load(None, RUN, number) or {} for number in range(9)]
        after_tool = [one.get("position") for one in saved].index("pay")
        origin = {"fork_from_app_id": RUN, "fork_from_sequence_id": after_tool}
        _, _, state = await (await _stored(world, persister, "fork", **origin)).arun(halt_after=["answering"])
        asked = world.count("model") - before
        return {
            "ok": state["answer"] == ANSWER and asked == 1,
            "observed": f"a new application, {asked} request",
        }


async def parallel(world: World) -> dict[str, Any]:
    """Import the class for parallel branches, which an extra of the package has."""
    try:
        from burr.core.parallelism import MapStates  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return {"ok": False, "value": "extra", "observed": "MapStates needs burr[tracking]: not measured"}
    return {"ok": True, "observed": MapStates.__name__}


async def talk(world: World) -> dict[str, Any]:
    """Say something in a conversation; the answer is how many messages the model sees."""

    @action(reads=["messages"], writes=["messages"])  # type: ignore[untyped-decorator, unused-ignore]
    async def reply(state: State) -> State:
        seen = [*state["messages"], PROMPT]
        return state.update(messages=[*seen, str(len(seen))])

    async with _opened(world) as persister:
        await persister.initialize()
        application = await (
            ApplicationBuilder()
            .with_actions(reply=reply)
            .with_transitions(("reply", "reply"))
            .with_identifiers(app_id="c")
            .initialize_from(
                persister,
                resume_at_next_action=True,
                default_state={"messages": []},
                default_entrypoint="reply",
            )
            .with_state_persister(persister)
            .abuild()
        )
        _, _, state = await application.arun(halt_after=["reply"])
        return {"output": state["messages"][-1]}


if __name__ == "__main__":
    probe.main(globals(), ("apache-burr",))
