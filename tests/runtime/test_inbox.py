"""Requests of other processes reach the runs that live here, whatever goes wrong meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orchestrator.errors import Corrupt, Fenced, RunUnknown, StoreDown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import Draft, Lease, Posted, RunHead
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.service import inbox
from orchestrator.telemetry.notice import ParkNotice
from orchestrator.tools.spec import tool
from tests.runtime.stage import NO_WAIT, until

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True)
def read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests count reads without waiting for each of them."""
    monkeypatch.setattr(inbox, "POLL", 0.002)


class Shared(MemoryJournal):
    """A store that other processes can post to; what is in `broken` raises when it is asked for that run."""

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[str, Exception] = {}
        """`news`, or the id of a run whose inbox cannot be read -> what it raises."""
        self.looks = 0
        self.heads = 0
        """Heads that could not be read."""
        self.asked: list[str] = []
        """The runs whose inboxes were read, in order."""

    async def news(self, since: int) -> tuple[int, list[str]]:
        self.looks += 1
        if "news" in self.broken:
            raise self.broken["news"]
        return await super().news(since)

    async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
        self.asked.append(run_id)
        if run_id in self.broken:
            raise self.broken[run_id]
        return await super().inbox(run_id, since)

    async def head(self, run_id: str) -> RunHead:
        if f"{run_id} head" in self.broken:
            self.heads += 1
            raise self.broken[f"{run_id} head"]
        return await super().head(run_id)


def asking(journal: MemoryJournal) -> Agent:
    """An agent whose model asks for a call that needs a yes, and then says what it was told."""

    @tool(approval=True)
    def pay() -> str:
        return "paid"

    def model(request: Request) -> Response:
        if request.messages[-1].role == "tool":
            return Response(request.messages[-1].text)
        return Response(None, (ToolCall("a", "pay", "{}"),))

    return Agent(
        FunctionLLM(model), tools=[pay], journal=journal, observers=[ParkNotice(print)], retry=NO_WAIT
    )


@asynccontextmanager
async def waiting(agent: Agent, *run_ids: str) -> AsyncIterator[list[asyncio.Task[Result]]]:
    """Runs that wait for a person, each with its record of that."""
    tasks = [asyncio.create_task(agent.run("pay", run_id=run_id)) for run_id in run_ids]

    async def parked() -> bool:
        return [head.status async for head in agent._service.journal.runs()] == ["parked"] * len(run_ids)

    await until(parked)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "orchestrator"]


async def some_looks(journal: Shared, count: int = 3) -> None:
    """Return when the listener has looked that often again."""
    enough = journal.looks + count
    await until(lambda: journal.looks >= enough)


DEFECT = RuntimeError("a defect of ours")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreDown("the disk is gone"), []),
        (
            DEFECT,
            ["requests of other processes could not be read and are retried: RuntimeError: a defect of ours"],
        ),
    ],
)
async def test_listening_goes_on_after_news_failed_and_says_so_once(
    error: Exception, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    journal = Shared()
    agent, other = asking(journal), asking(journal)
    async with waiting(agent, "r") as (task,):
        with caplog.at_level(logging.ERROR, "orchestrator"):
            journal.broken["news"] = error
            await some_looks(journal)
            await other.approve("r", by="eve")
            await some_looks(journal)
            assert not task.done()
            journal.broken.clear()
            assert (await asyncio.wait_for(task, 20)).output == "paid"
    assert logged(caplog) == said


@pytest.mark.parametrize("error", [StoreDown("the disk is gone"), Corrupt("request 1 is damaged"), DEFECT])
async def test_a_request_that_could_not_be_read_is_read_when_it_can_be(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Shared()
    agent = asking(journal)
    async with waiting(agent, "r") as (task,):
        with caplog.at_level(logging.ERROR, "orchestrator"):
            journal.broken["r"] = error
            await journal.post("r", Posted("one", "approve", {}, "eve"))
            await some_looks(journal, 5)
            assert not task.done()
            journal.broken.clear()
            assert (await asyncio.wait_for(task, 20)).output == "paid"
    text = f"requests to run 'r' could not be read and are retried: {type(error).__name__}: {error}"
    assert logged(caplog) == ([] if isinstance(error, StoreDown) else [text])


async def test_one_run_that_cannot_be_read_keeps_none_of_its_batch_from_hearing() -> None:
    journal = Shared()
    agent, other = asking(journal), asking(journal)
    async with waiting(agent, "a", "b", "c") as tasks:
        journal.broken["b"] = DEFECT
        # Nothing yields in between: it is one batch of news.
        for run_id in ("a", "b", "c"):
            await journal.post(run_id, Posted(run_id, "approve", {}, "eve"))
        results = await asyncio.wait_for(asyncio.gather(tasks[0], tasks[2]), 20)
        assert [result.output for result in results] == ["paid", "paid"]
        assert not tasks[1].done()
        with pytest.raises(RuntimeError):
            await journal.inbox("b")
        journal.broken.clear()
        assert (await asyncio.wait_for(tasks[1], 20)).output == "paid"
    assert other._service.live.find("b") is None


async def test_a_trouble_that_comes_back_is_said_again(caplog: pytest.LogCaptureFixture) -> None:
    journal = Shared()
    async with waiting(asking(journal), "r"):
        with caplog.at_level(logging.ERROR, "orchestrator"):
            for _ in range(2):
                journal.broken["news"] = DEFECT
                await some_looks(journal)
                journal.broken.clear()
                await some_looks(journal)
    assert len(logged(caplog)) == 2


async def test_without_news_nobody_reads_an_inbox() -> None:
    journal = Shared()
    async with waiting(asking(journal), "a", "b"):
        await some_looks(journal, 2)
        journal.asked.clear()
        await some_looks(journal, 3)
        assert journal.asked == []
        await journal.post("b", Posted("one", "pause", {}, "eve"))
        await some_looks(journal, 3)
        assert journal.asked == ["b"]


async def test_a_request_is_heard_with_the_first_look_after_it() -> None:
    class Noting(Shared):
        """Notes the looks that found something."""

        def __init__(self) -> None:
            super().__init__()
            self.found: list[int] = []

        async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
            posted = await super().inbox(run_id, since)
            self.found += [self.looks for _ in posted]
            return posted

    journal = Noting()
    agent = asking(journal)
    async with waiting(agent, "r"):
        await some_looks(journal)
        run = agent._service.live.get("r")
        for number in range(5):
            before = journal.looks
            await journal.post("r", Posted(f"{number}", "pause", {"why": f"{number}"}, "eve"))
            await until(lambda: getattr(run.control.pause_request, "why", "") == str(number))  # noqa: B023
            assert journal.found[number:] == [before + 1]


async def test_a_request_posted_before_the_run_knows_its_lease_is_heard() -> None:
    class Late(Shared):
        """Tells its caller that a run was created only when `told` is set; others can post to it by then."""

        def __init__(self) -> None:
            super().__init__()
            self.told = asyncio.Event()

        async def create(self, run_id: str, owner: str, body: Any) -> Any:
            lease = await super().create(run_id, owner, body)
            await self.told.wait()
            return lease

    journal = Late()
    task = asyncio.create_task(asking(journal).run("pay", run_id="r"))

    async def there() -> bool:
        return [head.run_id async for head in journal.runs()] == ["r"]

    await until(there)
    await some_looks(journal, 2)
    await journal.post("r", Posted("one", "cancel", {"why": "too early"}, "eve"))
    await some_looks(journal, 2)
    journal.told.set()
    result = await asyncio.wait_for(task, 20)
    assert (result.outcome, "too early" in str(result.error)) == (Outcome.CANCELLED, True)


# ---- taken over ----


async def steal(journal: MemoryJournal, run_id: str) -> Lease:
    return await journal.claim(run_id, "somebody else", steal=True)


async def test_a_run_that_waits_stops_when_somebody_else_has_taken_it() -> None:
    journal = Shared()
    agent = asking(journal)
    async with waiting(agent, "a", "b") as tasks:
        before = await journal.load("a")
        lease = await steal(journal, "a")
        with pytest.raises(Fenced, match="run 'a' cannot be continued here: another process has claimed it"):
            await asyncio.wait_for(tasks[0], 20)
        assert await journal.load("a") == before  # it wrote nothing more
        head = await journal.head("a")
        assert (head.owner, head.epoch) == ("somebody else", 2)
        journal.append(lease, [Draft("note", {})])  # and did not give away what is not its own
        assert not tasks[1].done()
        agent.approve("b")
        assert (await asyncio.wait_for(tasks[1], 20)).output == "paid"


async def test_a_run_that_waits_stops_when_it_was_ended_and_removed_elsewhere() -> None:
    journal = Shared()
    agent = asking(journal)
    async with waiting(agent, "r") as (task,):
        journal.broken["r head"] = RunUnknown("r")
        with pytest.raises(Fenced):
            await asyncio.wait_for(task, 20)


async def test_the_owner_of_a_waiting_run_is_read_in_every_tenth_look() -> None:
    class Counting(Shared):
        reads = 0

        async def head(self, run_id: str) -> RunHead:
            self.reads += 1
            return await super().head(run_id)

    journal = Counting()
    agent = asking(journal)
    async with waiting(agent, "r"):
        await some_looks(journal, 1)
        journal.reads = 0
        begun = journal.looks
        await some_looks(journal, 30)
        assert 2 <= journal.reads <= (journal.looks - begun) // 10 + 1


async def test_a_paused_run_stops_when_somebody_else_has_taken_it() -> None:
    journal = Shared()
    agent = asking(journal)
    async with waiting(agent, "r") as (task,):
        agent.pause("r", by="ann")
        agent.approve("r")

        async def paused() -> bool:
            return (await journal.head("r")).reason == "paused"

        await until(paused)
        await steal(journal, "r")
        with pytest.raises(Fenced):
            await asyncio.wait_for(task, 20)


async def test_a_run_whose_head_cannot_be_read_goes_on_waiting(caplog: pytest.LogCaptureFixture) -> None:
    journal = Shared()
    agent = asking(journal)
    async with waiting(agent, "r") as (task,):
        with caplog.at_level(logging.ERROR, "orchestrator"):
            journal.broken["r head"] = Corrupt("run 'r': its row is damaged")
            await until(lambda: journal.heads > 1)
            assert not task.done()
            agent.approve("r")
            assert (await asyncio.wait_for(task, 20)).output == "paid"
    assert logged(caplog) == []
