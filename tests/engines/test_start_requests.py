"""Runs that another process asks an engine to start: stored first, once for each id, refused in a sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.engines import engine_directory
from orchestrator.engines.agent import EngineAgent
from orchestrator.engines.engine_directory import START, STARTED, ask, engines
from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.worker import Worker
from orchestrator.errors import ConfigError, NotAdmitting, RunExists
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Posted, Record
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.rlm import Rlm
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import ToolContext, tool
from tests.engines.stage import Stage, agent, until
from tests.engines.test_worker_runs import Placed, Shared
from tests.runtime.pipeline_stage import Stages


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@tool(effect="pure")
async def reads(context: ToolContext[dict[str, str]]) -> str:
    """Read the deps."""
    return str(context.deps)


async def answers(engine: LocalEngine, journal: Any) -> list[Record]:
    return [record for record in await journal.load(engine.run_id) if record.kind == STARTED]


async def ended(journal: Any, run_id: str) -> str:
    """Return the outcome of a run, after its end."""
    # Another process may end it, so the journal has no event to wait for.
    while (head := await journal.head(run_id)).status != "ended":  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return str(head.outcome)


async def test_a_deposited_run_is_stored_before_a_slot_is_free_and_starts_then(
    journal: MemoryJournal,
) -> None:
    stage = Stage()
    async with LocalEngine({"support": agent(stage, journal)}, slots=1) as engine:
        await engine.submit("first", run_id="first")
        await until(lambda: stage.asked == ["first"])
        assert (
            await engine.deposit("second", run_id="second", tenant="acme", tags={"team": "ops"}) == "second"
        )
        head = await journal.head("second")
        assert (head.status, head.seq, head.tags) == ("open", 0, {"team": "ops"})
        assert (await journal.load("second"))[0].body["deposited"] == {"tenant": "acme"}
        assert stage.asked == ["first"]
        stage.let("first", "second")
        assert await ended(journal, "second") == "completed"


async def test_a_run_is_started_once_however_often_it_is_deposited(journal: MemoryJournal) -> None:
    stage = Stage()
    stage.let("go", "other")
    other = agent(stage, journal, name="other")
    async with LocalEngine({"support": agent(stage, journal, name="support"), "other": other}) as engine:
        for _ in range(2):
            await engine.deposit("go", run_id="r", agent="support")
        assert await ended(journal, "r") == "completed"
        await engine.deposit("go", run_id="r", agent="support")
        assert stage.asked == ["go"]
        with pytest.raises(RunExists):
            await engine.deposit("go", run_id="r", agent="other")


async def test_a_request_of_another_process_starts_a_run_and_its_record_has_no_input(tmp_path: Any) -> None:
    stage = Stage()
    stage.let("private words")
    async with (
        SqliteJournal(tmp_path / "journal.db") as journal,
        SqliteJournal(tmp_path / "journal.db") as console,
        LocalEngine({"support": agent(stage, journal)}) as engine,
    ):
        [found] = await engines(console)
        assert found.about["agents"]["support"]["input"]["type"] == "string"
        body = {"value": "private words", "agent": "support", "run_id": "r", "tags": {"team": "ops"}}
        answer = await ask(console, found, START, body, "mara")
        assert answer is not None
        assert {name: answer.get(name) for name in ("by", "agent", "run_id", "refused")} == {
            "by": "mara", "agent": "support", "run_id": "r", "refused": None,
        }  # fmt: skip
        assert await ended(console, "r") == "completed"
        assert (await console.head("r")).tags == {"team": "ops"}
        assert "private" not in str([record.body for record in await console.load(engine.run_id)])


async def test_an_answer_is_found_after_the_record_of_another_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_directory, "ANSWERS_WITHIN", 60.0)

    class Read(MemoryJournal):
        since = -1

        async def load(self, run_id: str, since: int = 0) -> Sequence[Record]:
            self.since = since
            return await super().load(run_id, since)

    journal = Read()
    async with LocalEngine({"support": agent(Stage(), journal)}) as engine:
        [found] = await engines(journal)
        asking = asyncio.create_task(ask(journal, found, START, {}, "mara"))
        while not (posted := await journal.inbox(engine.run_id)):  # noqa: ASYNC110 - a journal tells nobody
            await asyncio.sleep(0)
        await engine._registration.note(STARTED, {"id": "another"})
        await until(lambda: journal.since == found.last + 1)
        await engine._registration.note(STARTED, {"id": posted[0].id})
        said = await asking
    assert said is not None
    assert said["id"] == posted[0].id


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ({"agent": "nobody"}, "agent must be one of needs, support; not 'nobody'"),
        ({"agent": "needs"}, "reads deps"),
        ({"agent": "support", "value": 7}, "the prompt must be text or messages"),
        ({"agent": "support", "run_id": ""}, "run_id"),
        ({"agent": "support", "tags": ["a"]}, "tags is"),
        ({"agent": "support", "tenant": 7}, "tenant"),
        (
            {"agent": "support", "limits": {}},
            "start takes agent, metadata, run_id, tags, tenant, value, not limits",
        ),
    ],
)
async def test_a_request_that_cannot_be_carried_out_is_refused_in_a_sentence_and_stores_nothing(
    journal: MemoryJournal, body: dict[str, Any], refused: str
) -> None:
    agents = {
        "needs": Agent(ScriptedLLM([]), tools=[reads], journal=journal, observers=(), name="needs"),
        "support": agent(Stage(), journal, name="support"),
    }
    async with LocalEngine(agents) as engine:
        posted = Posted("1", START, {"value": "go", "run_id": "r", **body}, "mara")
        await engine._commands.take(posted)
        [answer] = await answers(engine, journal)
        assert refused in answer.body["refused"]
        assert [head.run_id async for head in journal.runs(graph="llm_loop")] == []


async def test_a_closed_engine_starts_nothing(journal: MemoryJournal) -> None:
    async with LocalEngine(agent(Stage(), journal)) as engine:
        await engine.control("stop_admitting", by="ann", why="the price is wrong")
        with pytest.raises(NotAdmitting, match="the price is wrong"):
            await engine.deposit("go", run_id="r")
    assert [head.run_id async for head in journal.runs(graph="llm_loop")] == []


async def test_a_request_that_was_left_when_the_store_was_down_starts_its_run_later(
    journal: MemoryJournal,
) -> None:
    stage = Stage()
    stage.let("go")
    async with LocalEngine({"support": agent(stage, journal)}) as engine:
        # The run was stored, and then the store was down, so the request is read again.
        await agent(stage, journal).deposit("go", run_id="r")
        await engine.deposit("go", run_id="r", agent="support")
        assert await ended(journal, "r") == "completed"
    assert stage.asked == ["go"]


async def test_a_worker_leaves_a_deposited_run_to_its_dispatcher_with_its_tenant() -> None:
    stage, journal, placed = Stage(), Shared(), Placed()
    async with Worker({"support": agent(stage, journal)}, placed) as worker:
        await worker._engine.deposit("go", run_id="r", tenant="acme")
        assert ("r", 0, "acme") in placed.submitted
        assert stage.asked == []
        stage.let("go")
        await placed.drives("r", 0)
        assert await ended(journal, "r") == "completed"


async def test_a_pipeline_and_an_rlm_take_their_own_input(journal: MemoryJournal) -> None:
    rlm = Rlm(ScriptedLLM(["Three."]), mode="tools", journal=journal, observers=(), name="reader")
    agents: dict[str, EngineAgent] = {"plan": Stages().pipeline(journal=journal), "reader": rlm}
    async with LocalEngine(agents) as engine:
        await engine.deposit({"goal": "x"}, run_id="p", agent="plan")
        assert await ended(journal, "p") == "completed"
        await engine.deposit({"prompt": "How many?", "context": "a b c"}, run_id="m", agent="reader")
        assert (await journal.load("m"))[0].body["material"] == "a b c"
        with pytest.raises(ConfigError, match="prompt and, if there are data, context"):
            await engine.deposit({"context": "a"}, run_id="n", agent="reader")
