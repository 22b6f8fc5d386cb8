"""Start or continue in one call: a run with an id starts, continues, or gives its result again, in every facade."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, LocalEngine, RunExists, SqliteJournal, tool
from orchestrator.approval import Approval
from orchestrator.errors import Held, OtherAgent
from orchestrator.pipeline import Pipeline
from orchestrator.ralph import Ralph
from orchestrator.rlm import Rlm
from orchestrator.testing import ScriptedLLM, call
from tests.runtime.approval.stand import Script, planted
from tests.runtime.pipeline_stage import Stages
from tests.runtime.ralph_stage import World
from tests.runtime.stage import until

DONE = "completed"
WAITS = "AwaitingApproval"


@dataclass
class Gate:
    """Where the work of a run stops until it is opened, as in a process that is killed there."""

    is_open: bool = True
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def passed(self) -> None:
        self.entered.set()
        if not self.is_open:
            await self.opened.wait()


# ---- facades ----


@tool(effect="idempotent", approval=True)
def pay(to: str) -> str:
    """Pay."""
    return "paid"


def make_agent(_: Path, journal: SqliteJournal, gate: Gate, *, asks: bool = False) -> Any:
    async def answer(_: object) -> str:
        await gate.passed()
        return "done"

    script = [call("pay", to="ann"), "done"] if asks else [answer, answer]
    return Agent(ScriptedLLM(script), tools=[pay], name="one", journal=journal, observers=())


def make_pipeline(_: Path, journal: SqliteJournal, gate: Gate, **__: Any) -> Any:
    stages = Stages()

    async def plan(request: Any) -> Any:
        await gate.passed()
        return await stages.planner(request)

    ports = plan, stages.validator, stages.implementer, stages.judge
    return Pipeline(*ports, name="one", journal=journal, observers=())


def make_rlm(_: Path, journal: SqliteJournal, gate: Gate, **__: Any) -> Any:
    async def answer(_: object) -> str:
        await gate.passed()
        return "FINAL(done)"

    return Rlm(ScriptedLLM([answer, answer]), name="one", journal=journal, observers=())


def make_ralph(folder: Path, journal: SqliteJournal, gate: Gate, **__: Any) -> Any:
    world = World(folder)

    async def plan(request: Any) -> Any:
        await gate.passed()
        return world(request)

    return Ralph(plan, world, world, root=world.root, name="one", journal=journal, observers=())


class GatedPlanner(Script):
    """The planner of a project behind a gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    async def plan(self, request: Any) -> Any:
        await self._gate.passed()
        return await super().plan(request)


def make_approval(folder: Path, journal: SqliteJournal, gate: Gate, **__: Any) -> Any:
    project = folder / "project"
    if not project.exists():
        project.mkdir()
        planted(project)
    return Approval(project, GatedPlanner(gate), name="one", journal=journal, observers=())


MAKES: dict[str, Callable[..., Any]] = {
    "Agent": make_agent,
    "Pipeline": make_pipeline,
    "Rlm": make_rlm,
    "Ralph": make_ralph,
    "Approval": make_approval,
}

# ---- what there is before ----


class Before:
    """What another process did with run r1 before."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self._running: asyncio.Task[Any] | None = None
        self._journal = SqliteJournal(folder / "journal.db")

    def made(self, gate: Gate, **options: Any) -> Any:
        return MAKES[self.kind](self.folder, self._journal, gate, **options)

    async def new(self) -> None:
        """Nothing."""

    async def open(self) -> None:
        """Leave it in the middle of its work, as a killed process does."""
        await self._started(self.made(gate := Gate(is_open=False)), gate)
        await self.leave()

    async def owned(self) -> None:
        """Work on it still."""
        await self._started(self.made(gate := Gate(is_open=False)), gate)

    async def waiting(self) -> None:
        """Leave it where it waits for a person: with a question if it has one, else paused."""
        if self.kind == "Approval":
            await self.made(Gate()).run("Do it.", run_id="r1")
            return
        gate = Gate(is_open=self.kind == "Agent")
        agent = self.made(gate, asks=True)
        if self.kind == "Agent":
            self._running = asyncio.create_task(agent.run("Do it.", run_id="r1"))
        else:
            await self._started(agent, gate)
            await agent.pause("r1")
            gate.opened.set()
        while not [one async for one in self._journal.runs() if one.status == "parked"]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await self.leave()

    async def ended(self) -> None:
        """Bring it to its end."""
        agent = self.made(Gate())
        if self.kind == "Approval":
            async with agent:
                await agent.run("Do it.", run_id="r1")
                await agent.show()
                await agent.approve()
        else:
            await agent.run("Do it.", run_id="r1")

    async def _started(self, agent: Any, gate: Gate) -> None:
        self._running = asyncio.create_task(agent.run("Do it.", run_id="r1"))
        await gate.entered.wait()

    async def leave(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))
            self._running = None


# ---- what asks for it ----

Ask = Callable[[Any, str], Awaitable[Any]]


def entered(one: Any) -> AbstractAsyncContextManager[Any]:
    """Return the context in which an engine may work on a project."""
    return one if isinstance(one, Approval) else nullcontext()


async def by_run(one: Any, if_exists: Any) -> Any:
    return await one.run("Do it.", run_id="r1", if_exists=if_exists)


async def by_stream(one: Any, if_exists: Any) -> Any:
    async with one.stream("Do it.", run_id="r1", if_exists=if_exists) as stream:
        async for _ in stream:
            pass
    return await stream.result()


async def by_engine(one: Any, if_exists: Any) -> Any:
    async with entered(one), LocalEngine(one, recover="list", grace=0.0) as engine:
        return await (await engine.submit("Do it.", run_id="r1", if_exists=if_exists))


async def by_engine_stream(one: Any, if_exists: Any) -> Any:
    async with entered(one), LocalEngine(one, recover="list", grace=0.0) as engine:
        return await engine.stream("Do it.", run_id="r1", if_exists=if_exists).result()


ASKS: list[Ask] = [by_run, by_stream, by_engine, by_engine_stream]
TABLE: dict[str, dict[str, Any]] = {
    "new": {"raise": DONE, "resume": DONE, "return": DONE},
    "open": {"raise": RunExists, "resume": DONE, "return": RunExists},
    "waiting": {"raise": RunExists, "resume": DONE, "return": RunExists},
    "ended": {"raise": RunExists, "resume": DONE, "return": DONE},
    "owned": {"raise": RunExists, "resume": Held, "return": RunExists},
}
"""What there is before -> `if_exists` -> what becomes of it."""
PROJECT: dict[str, dict[str, Any]] = {
    "new": {"raise": WAITS, "resume": WAITS, "return": WAITS},
    "open": {"raise": RunExists, "resume": "Idle", "return": "Idle"},  # a person confirms the intent again
    "waiting": {"raise": RunExists, "resume": WAITS, "return": WAITS},
    "ended": {"raise": RunExists, "resume": "Idle", "return": "Idle"},
    "owned": {"raise": Held, "resume": Held, "return": Held},  # nobody else works on the project
}
"""The same of a project, whose runs return where they wait for a person: the state there."""


def cases() -> Iterator[Any]:
    """Yield every case: `make test` asks for each one in one of the ways, in turn, the campaign in the others."""
    rows = [(before, if_exists) for before, ends in TABLE.items() for if_exists in ends]
    for (row, (before, if_exists)), (column, kind), (way, ask) in itertools.product(
        enumerate(rows), enumerate(MAKES), enumerate(ASKS)
    ):
        marks = () if (row + column) % len(ASKS) == way else pytest.mark.campaign
        name = f"{before}-{if_exists}-{kind}-{ask.__name__}"
        yield pytest.param(before, if_exists, kind, ask, marks=marks, id=name)


@pytest.mark.parametrize(("before", "if_exists", "kind", "ask"), [*cases()])
async def test_a_run_starts_continues_or_is_read_as_the_caller_says(
    tmp_path: Path, ask: Ask, kind: str, before: str, if_exists: str
) -> None:
    earlier = Before(kind, tmp_path)
    expected = (PROJECT if kind == "Approval" else TABLE)[before][if_exists]
    await getattr(earlier, before)()
    journal = SqliteJournal(tmp_path / "journal.db")
    one = MAKES[kind](tmp_path, journal, Gate())
    asked = asyncio.ensure_future(ask(one, if_exists))
    try:
        if (kind, before, if_exists) == ("Agent", "waiting", "resume"):  # it waits until a person answers
            while (await journal.head("r1")).owner is None:  # noqa: ASYNC110 - the journal has no event
                await asyncio.sleep(0.005)
            await one.approve("r1")
        if isinstance(expected, str):
            result = await asked
            found = result.state if kind == "Approval" else result.outcome
            assert (result.run_id, found) == ("r1", expected)
        else:
            with pytest.raises(expected):
                await asked
    finally:
        asked.cancel()
        await asyncio.wait((asked,))
        await earlier.leave()
    graph = (await journal.head("r1")).graph
    assert [one.run_id async for one in journal.runs() if one.graph == graph] == ["r1"]


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("if_exists", ["resume", "return"])
async def test_concurrent_callers_get_the_result_of_one_run(
    tmp_path: Path, if_exists: Any, kind: str
) -> None:
    one = MAKES[kind](tmp_path, SqliteJournal(tmp_path / "journal.db"), gate := Gate(is_open=False))
    first = asyncio.create_task(one.run("Do it.", run_id="r1", if_exists="resume"))
    await gate.entered.wait()
    others = [asyncio.create_task(one.run("Do it.", run_id="r1", if_exists=if_exists)) for _ in range(3)]
    await asyncio.sleep(0)
    gate.opened.set()
    ends = await asyncio.gather(first, *others)
    assert {one.run_id for one in ends} == {"r1"}
    assert len({repr(getattr(one, "outcome", None) or one.state) for one in ends}) == 1


async def test_an_earlier_request_of_a_project_is_read(tmp_path: Path) -> None:
    await Before("Approval", tmp_path).ended()
    one = MAKES["Approval"](tmp_path, SqliteJournal(tmp_path / "journal.db"), Gate())
    await one.run("Do more.", run_id="r2")
    for if_exists in ("resume", "return"):
        assert (await by_run(one, if_exists)).run_id == "r1"
    assert (await one.status()).run_id == "r2"


async def test_a_cancelled_caller_that_waits_for_a_run_leaves_it_alone(tmp_path: Path) -> None:
    one = make_agent(tmp_path, SqliteJournal(tmp_path / "journal.db"), gate := Gate(is_open=False))
    first = asyncio.create_task(one.run("Go.", run_id="r1"))
    await until(lambda: one._service.live.find("r1") is not None)
    second = asyncio.create_task(one.run("Go.", run_id="r1", if_exists="resume"))
    await asyncio.sleep(0.01)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.opened.set()
    assert (await first).output == "done"


@pytest.mark.parametrize("if_exists", ["resume", "return"])
async def test_a_run_of_another_agent_is_neither_continued_nor_read(tmp_path: Path, if_exists: Any) -> None:
    await Before("Agent", tmp_path).ended()
    other: Any = Agent(
        ScriptedLLM(["done"]), name="other", journal=SqliteJournal(tmp_path / "journal.db"), observers=()
    )
    with pytest.raises(OtherAgent):
        await other.run("Pay Ann.", run_id="r1", if_exists=if_exists)


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (
            {"if_exists": "ignore", "run_id": "r1"},
            "if_exists is 'ignore'; possible: 'raise', 'resume', 'return'",
        ),
        ({"if_exists": "resume"}, "if_exists is 'resume', which is about an id: give run_id too"),
    ],
)
async def test_another_word_and_a_missing_id_are_refused(
    tmp_path: Path, kind: str, options: Any, fault: str
) -> None:
    one = MAKES[kind](tmp_path, SqliteJournal(tmp_path / "journal.db"), Gate())
    with pytest.raises(ConfigError) as refused:
        await one.run("Go.", **options)
    assert str(refused.value) == fault
    with pytest.raises(ConfigError):
        one.stream("Go.", **options)
