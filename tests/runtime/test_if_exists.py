"""Start or continue in one call: a run with an id starts, continues, or gives its result again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, LocalEngine, RunExists, SqliteJournal, tool
from orchestrator.errors import OtherAgent
from orchestrator.events import RunFinished
from orchestrator.pipeline import Pipeline
from orchestrator.rlm import Rlm
from orchestrator.testing import ScriptedLLM, call
from tests.runtime.pipeline_stage import Stages
from tests.runtime.stage import until

paid: list[str] = []


def shop(
    journal: SqliteJournal, *, hangs: asyncio.Event | None = None, name: str = "shop"
) -> Agent[Any, str]:
    @tool(effect="idempotent")
    async def pay(to: str) -> str:
        """Pay."""
        if hangs is not None:
            hangs.set()
            await asyncio.Event().wait()
        paid.append(to)
        return "paid"

    llm = ScriptedLLM([call("pay", to="ann") if hangs is not None else "done", "done"])
    return Agent(llm, name=name, tools=[pay], journal=journal, observers=())


async def interrupted(journal: SqliteJournal) -> None:
    """Leave run r1 in the middle of its payment, as a killed process does."""
    paid.clear()
    entered = asyncio.Event()
    running = asyncio.create_task(shop(journal, hangs=entered).run("Pay Ann.", run_id="r1"))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def ended(journal: SqliteJournal) -> None:
    paid.clear()
    assert (await shop(journal).run("Pay Ann.", run_id="r1")).output == "done"


async def absent(journal: SqliteJournal) -> None:
    paid.clear()


Ask = Callable[[Agent[Any, str], str], Awaitable[str]]


async def by_run(one: Agent[Any, str], if_exists: Any) -> str:
    return (await one.run("Pay Ann.", run_id="r1", if_exists=if_exists)).output


async def by_stream(one: Agent[Any, str], if_exists: Any) -> str:
    async with one.stream("Pay Ann.", run_id="r1", if_exists=if_exists) as stream:
        events = [event async for event in stream]
    assert isinstance(events[-1], RunFinished)
    return (await stream.result()).output


async def by_engine(one: Agent[Any, str], if_exists: Any) -> str:
    async with LocalEngine(one, recover="list") as engine:
        return (await (await engine.submit("Pay Ann.", run_id="r1", if_exists=if_exists))).output


async def by_engine_stream(one: Agent[Any, str], if_exists: Any) -> str:
    async with LocalEngine(one, recover="list") as engine:
        stream = engine.stream("Pay Ann.", run_id="r1", if_exists=if_exists)
        return (await stream.result()).output


every = pytest.mark.parametrize(
    "ask", [by_run, by_stream, by_engine, by_engine_stream], ids=lambda one: one.__name__
)


@every
@pytest.mark.parametrize(
    ("before", "if_exists", "payments"),
    [
        (absent, "raise", []),
        (absent, "resume", []),
        (absent, "return", []),
        (interrupted, "raise", None),
        (interrupted, "resume", ["ann"]),
        (interrupted, "return", None),
        (ended, "raise", None),
        (ended, "resume", []),
        (ended, "return", []),
    ],
)
async def test_a_run_starts_continues_or_is_read_as_the_caller_says(
    tmp_path: Path, ask: Ask, before: Any, if_exists: str, payments: list[str] | None
) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    await before(journal)
    if payments is None:
        with pytest.raises(RunExists, match="if_exists='resume'"):
            await ask(shop(journal), if_exists)
        assert paid == []
        return
    assert await ask(shop(journal), if_exists) == "done"
    assert paid == payments
    assert await ask(shop(journal), "return") == "done"


@pytest.mark.parametrize("if_exists", ["resume", "return"])
async def test_concurrent_callers_get_the_result_of_one_run(tmp_path: Path, if_exists: Any) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    one = Agent(ScriptedLLM(["done"], latency=0.01), journal=journal, observers=())
    asked = [one.run("Go.", run_id="r1", if_exists=if_exists) for _ in range(5)]
    assert {result.output for result in await asyncio.gather(*asked)} == {"done"}


async def test_a_cancelled_caller_that_waits_for_a_run_leaves_it_alone(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def answer(_: object) -> str:
        await gate.wait()
        return "done"

    one: Agent[Any, str] = Agent(
        ScriptedLLM([answer]), journal=SqliteJournal(tmp_path / "journal.db"), observers=()
    )
    first = asyncio.create_task(one.run("Go.", run_id="r1"))
    await until(lambda: one._service.live.find("r1") is not None)
    second = asyncio.create_task(one.run("Go.", run_id="r1", if_exists="resume"))
    await asyncio.sleep(0.01)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.set()
    assert (await first).output == "done"


@pytest.mark.parametrize("if_exists", ["resume", "return"])
async def test_a_run_of_another_agent_is_neither_continued_nor_read(tmp_path: Path, if_exists: Any) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    await ended(journal)
    with pytest.raises(OtherAgent):
        await shop(journal, name="other").run("Go.", run_id="r1", if_exists=if_exists)


async def test_pipelines_and_rlm_take_it_too(tmp_path: Path) -> None:
    stages = Stages()
    ports = stages.planner, stages.validator, stages.implementer, stages.judge
    pipeline = Pipeline(*ports, journal=SqliteJournal(tmp_path / "pipeline.db"), observers=())
    rlm = Rlm(ScriptedLLM(["FINAL(done)"]), journal=SqliteJournal(tmp_path / "rlm.db"), observers=())
    for one, given in ((pipeline, "a spec"), (rlm, "Go.")):
        facade: Any = one
        first = await facade.run(given, run_id="r1", if_exists="resume")
        again = await facade.run(given, run_id="r1", if_exists="return")
        assert (first.outcome, first.run_id) == (again.outcome, again.run_id)
        with pytest.raises(RunExists):
            await facade.run(given, run_id="r1")


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
async def test_another_word_and_a_missing_id_are_refused(tmp_path: Path, options: Any, fault: str) -> None:
    one = shop(SqliteJournal(tmp_path / "journal.db"))
    with pytest.raises(ConfigError) as refused:
        await one.run("Go.", **options)
    assert str(refused.value) == fault
    with pytest.raises(ConfigError):
        one.stream("Go.", **options)
