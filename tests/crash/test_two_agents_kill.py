"""Two agents on one journal and `kill -9`: in no combination does one resume the run of the other."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.engines.dbos import DbosDispatcher
from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.procrastinate import ProcrastinateDispatcher
from orchestrator.engines.worker import Worker
from orchestrator.errors import OtherAgent, RunUnknown
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.runtime.llm_loop.agent import Agent
from tests.conftest import crossed
from tests.crash.fleet import Fleet
from tests.crash.life import ROOT
from tests.crash.two_agents import AGENTS, FOLDER
from tests.postgres import Cluster

DISPATCHERS: dict[str, Callable[..., Any]] = {
    "procrastinate": ProcrastinateDispatcher,
    "dbos": DbosDispatcher,
}
MOMENTS = (("sales", "asked"), ("sales", "paying"), ("support", "paying"))
"""The agent whose process is killed, and when: after its question was asked, or after its call was announced."""
each = pytest.mark.parametrize(("owner", "moment"), MOMENTS, ids=["-".join(one) for one in MOMENTS])


@pytest.fixture
def database(postgres: Cluster, with_tables: str) -> str:
    """The URL of a database that has the tables of dispatchers, and nothing in them."""
    return postgres.database(with_tables)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


def other(name: str) -> str:
    return "support" if name == "sales" else "sales"


def paid(folder: Path) -> list[str]:
    file = folder / "paid"
    return file.read_text().split() if file.exists() else []


async def until(ready: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not await ready():
        assert time.monotonic() < ends, "it never came to that"
        await asyncio.sleep(0.02)


async def killed(
    folder: Path, environment: dict[str, str], address: str, journal: Any, at: tuple[str, str]
) -> None:
    """Let a process start a run and kill it; an asked question is approved, and the approval waits in the journal."""
    owner, moment = at
    (folder / "hang").touch()
    one = AGENTS[owner](journal)

    async def is_free() -> bool:
        return bool((await journal.head(owner)).owner is None)

    command = (sys.executable, "-m", "tests.crash.two_agents", address, owner)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment | {FOLDER: str(folder)}
    )
    try:
        await reached(folder, one, moment)
    finally:
        process.kill()
        await process.wait()
    await until(is_free)
    if moment == "asked":
        await approved(one)
    (folder / "hang").unlink()


async def reached(folder: Path, one: Agent, moment: str) -> None:
    """Wait until a run asks, or pays; its question is approved for the latter."""

    async def is_paying() -> bool:
        return (folder / "paying").exists()

    if one.name == "sales":
        await until(lambda: _asks(one, "sales"))
    if moment == "paying" and one.name == "sales":
        await approved(one)
    if moment == "paying":
        await until(is_paying)


async def approved(one: Agent) -> None:
    (question,) = await one.pending(one.name)
    await one.approve(one.name, digest=question.digest, by="ann")


async def records(journal: Any, run_id: str) -> list[Any]:
    return [record[:4] for record in await journal.load(run_id)]


async def ended(journal: Any, run_id: str) -> bool:
    try:
        return bool((await journal.head(run_id)).status == "ended")
    except RunUnknown:
        return False


async def assert_own(folder: Path, journal: Any, owner: str, others: Sequence[str]) -> None:
    """The run ended, its own agent paid once, and the other one paid for its own runs only."""
    assert (await journal.head(owner)).agent == owner
    assert sorted(paid(folder)) == sorted([owner, *others])
    (done,) = [record.body for record in await journal.load(owner) if record.kind == "done"]
    assert done["content"] == f"paid by {owner}"


async def refused(folder: Path, environment: dict[str, str], at: tuple[str, str]) -> None:
    """In this process: the other agent is refused, and the agent of the run resumes it."""
    owner, path = at[0], folder / "journal.db"
    async with SqliteJournal(path) as journal:
        await killed(folder, environment, str(path), journal, at)
        before = await records(journal, owner)
        with pytest.raises(OtherAgent):
            await AGENTS[other(owner)](journal).resume(owner)
        assert (await records(journal, owner), paid(folder)) == (before, [])
        await AGENTS[owner](journal).resume(owner)
        await assert_own(folder, journal, owner, [])


@pytest.mark.canary("sales-asked")
@each
async def test_a_process_with_both_agents_resumes_a_killed_run_with_its_own(
    folder: Path, environment: dict[str, str], owner: str, moment: str
) -> None:
    await refused(folder, environment, (owner, moment))


@each
async def test_an_engine_resumes_a_killed_run_only_if_it_has_its_agent(
    folder: Path, environment: dict[str, str], owner: str, moment: str
) -> None:
    path, stranger = folder / "journal.db", other(owner)
    async with SqliteJournal(path) as journal:
        await killed(folder, environment, str(path), journal, (owner, moment))
        before = await records(journal, owner)
        wrong = AGENTS[stranger](journal)
        async with LocalEngine(wrong, recover="resume", rescan=0.05) as engine:
            handle = await engine.submit("go", run_id="own")
            if stranger == "sales":
                await until(lambda: _asks(wrong, "own"))
                await wrong.approve("own", digest=(await wrong.pending("own"))[0].digest)
            await handle
            assert engine.recovered == {}
        assert (await records(journal, owner), paid(folder)) == (before, [stranger])
        both = {name: make(journal) for name, make in AGENTS.items()}
        async with LocalEngine(both, recover="resume", rescan=0.05):
            await until(lambda: ended(journal, owner))
        await assert_own(folder, journal, owner, [stranger])


async def _asks(one: Agent, run_id: str) -> bool:
    try:
        return bool(await one.pending(run_id))
    except RunUnknown:  # its process has not started it yet
        return False


@pytest.mark.parametrize(
    ("kind", "at"),
    crossed(tuple(DISPATCHERS), MOMENTS),
    ids=lambda one: one if isinstance(one, str) else "-".join(one),
)
async def test_a_worker_resumes_a_killed_run_only_if_it_has_its_agent(
    kind: str, at: tuple[str, str], folder: Path, environment: dict[str, str], database: str
) -> None:
    owner, stranger = at[0], other(at[0])
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(PostgresJournal(database))
        await killed(folder, environment, database, journal, at)
        before = await records(journal, owner)
        outside = DISPATCHERS[kind](database)
        stack.push_async_callback(outside.stop)

        strangers = Fleet(database, folder, "--dispatcher", kind, agent=f"tests.crash.two_agents:{stranger}")
        stack.callback(strangers.close)
        strangers.start("w1")
        await outside.submit(owner, before[-1][0])  # the queue does not know whose run it is
        one = AGENTS[stranger](journal)
        await one.deposit("go", run_id="own")
        if stranger == "sales":
            await until(lambda: _asks(one, "own"))
            await one.approve("own", digest=(await one.pending("own"))[0].digest)
        await until(lambda: ended(journal, "own"))
        assert (await records(journal, owner), paid(folder)) == (before, [stranger])
        own = await stack.enter_async_context(PostgresJournal(database, name="w2"))
        async with Worker(AGENTS[owner](own), DISPATCHERS[kind](database), rescan=0.2, grace=0):
            await until(lambda: ended(journal, owner))
        await assert_own(folder, journal, owner, [stranger])
        assert owner not in strangers.said("w1").replace(f"{stranger}:", ""), strangers.said("w1")


@each
async def test_the_command_line_resumes_no_run_of_an_agent_that_a_program_has_unless_it_is_transferred(
    folder: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str], owner: str, moment: str
) -> None:
    path = folder / "journal.db"
    async with SqliteJournal(path) as journal:
        await killed(folder, environment, str(path), journal, (owner, moment))
        before = await records(journal, owner)
    tools = (
        "--model",
        "python:tests.crash.two_agents:model",
        "--tool",
        "tests.crash.two_agents:pay_of_support",
    )

    def resume(*options: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as end:
            main(["runs", "resume", owner, *tools, *options, "--journal", str(path)])
        return end.value.code, capsys.readouterr().err

    code, said = await asyncio.to_thread(resume)
    assert code == 2
    assert (
        f"run {owner} belongs to agent '{owner}', which a program has: that program resumes it, or transfer it to this "
        f"command line with --from-agent {owner}"
    ) in said
    assert "belongs to agent" in (await asyncio.to_thread(resume, "--from-agent", "nobody"))[1]
    async with SqliteJournal(path) as journal:
        assert (await records(journal, owner), paid(folder)) == (before, [])
        await AGENTS[owner](journal).resume(owner)
        await assert_own(folder, journal, owner, [])
