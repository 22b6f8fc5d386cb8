"""A run answers for its descendants: from any run above, on every store, live or left in its journal."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.branches import ALL, Branch, Fan, Workflow
from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.served_agent import DurableAgent
from orchestrator.errors import AnswerRefused, ConfigError, RunOver, RunUnknown
from orchestrator.events import QuestionAsked, RunEvent, RunFinished
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import RunCompleted
from orchestrator.kernel.journal import Journal, Posted, RunHead
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request
from orchestrator.machines.question import Question
from orchestrator.providers.scripted import Answer, FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.agent_tool import open_root
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.notification import Notice, OpenNotices
from orchestrator.runtime.pipeline.pipeline import Pipeline
from orchestrator.runtime.pipeline.prompt_stage import PromptStage
from orchestrator.runtime.ralph.prompt_agent import PromptAgent
from orchestrator.runtime.ralph.ralph import Ralph
from orchestrator.runtime.runs.listing import path_to_root
from orchestrator.runtime.runs.runs import Runs
from orchestrator.runtime.service.descendant import open_ancestors
from orchestrator.telemetry import Metrics
from orchestrator.tools.spec import tool
from tests.runtime.branches.machine import Hooks, SpreadContext, spread
from tests.runtime.stage import NO_WAIT, Facts

Open = Callable[[], Any]
SILENT: dict[str, Any] = {"observers": (), "retry": NO_WAIT}
PATH = ("front", "middle", "miner")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Open the journal, and a second handle of it as another process has one."""
    one = MemoryJournal()
    url = request.getfixturevalue("database") if request.param == "postgres" else ""
    stores: dict[str, Callable[[], Any]] = {
        "memory": lambda: one,
        "sqlite": lambda: SqliteJournal(tmp_path / "journal.db"),
        "postgres": lambda: PostgresJournal(url),
    }

    @asynccontextmanager
    async def both() -> AsyncIterator[tuple[Journal, Journal]]:
        async with AsyncExitStack() as stack:
            handles = stores[request.param](), stores[request.param]()
            for journal in handles:
                stack.push_async_callback(journal.close)
            yield handles

    return both


class Mine:
    """Three agents: `front` calls `middle`, which calls `miner` so many times at once; `miner` calls `blast`."""

    def __init__(self, calls: int = 1) -> None:
        self.blasts: Counter[str] = Counter()

        @tool(effect="irreversible", approval=True)
        def blast(at: str) -> str:
            """Blast rock."""
            self.blasts[at] += 1
            return f"rock of {at}"

        self._blast, self._calls = blast, calls

    def front(self, journal: Journal, **options: Any) -> Agent:
        miner = Agent(FunctionLLM(self._miner), name="miner", tools=[self._blast], **SILENT)
        middle = Agent(
            FunctionLLM(self._middle), name="middle", tools=[miner.as_tool("mine", "Mine.")], **SILENT
        )
        tools = [middle.as_tool("plan", "Plan."), self._blast]
        model = FunctionLLM(lambda request: _last(request) or call("plan", task="vein"))
        return Agent(model, name="front", tools=tools, journal=journal, **SILENT, **options)

    def _middle(self, request: Request) -> Answer:
        return _last(request) or [call("mine", task=f"vein {number}") for number in range(self._calls)]

    def _miner(self, request: Request) -> Answer:
        return _last(request) or call("blast", at=request.messages[-1].text)


def _last(request: Request) -> str:
    last = request.messages[-1]
    return f"said {last.text}" if last.role == "tool" else ""


async def pending(runs: Agent | Runs, run_id: str, count: int = 1) -> list[Any]:
    """The questions of a tree, once there are so many."""
    async with asyncio.timeout(30):
        while True:
            try:
                found = await runs.pending(run_id)
            except RunUnknown:
                found = []  # it is not stored yet
            if len(found) == count:
                return list(found)
            await asyncio.sleep(0.01)


def elsewhere(agent: Agent, other: Journal) -> Runs:
    """The runs as another process has them; only the owner of a journal in memory can answer."""
    return Runs(other) if other.shared else agent.runs


@asynccontextmanager
async def running(agent: Agent, run_id: str = "p") -> AsyncIterator[asyncio.Task[Result]]:
    task = asyncio.create_task(agent.run("go", run_id=run_id))
    yield task
    task.cancel()
    await asyncio.wait((task,))


@pytest.mark.parametrize("above", ["p", "p:1:0", "p:1:0:1:0"], ids=["root", "parent", "itself"])
async def test_a_question_is_pending_and_answered_from_every_run_above_it(opened: Open, above: str) -> None:
    mine = Mine()
    async with opened() as (journal, other):
        front = mine.front(journal)
        async with running(front) as task:
            stranger = Agent(FunctionLLM(lambda _: ""), name="stranger", journal=other, **SILENT)
            runs = elsewhere(front, other)
            for reader in (front, stranger, runs):
                (one,) = await pending(reader, above)
                assert (one.run_id, one.key, one.tool) == ("p:1:0:1:0", "1:0", "blast")
                assert one.agents == PATH[above.count(":1:0") :]
                assert isinstance(one, Question)
            # Answering is not resuming: the agent of another name may answer, from above only with the whole digest.
            answers = stranger if other.shared else front
            await answers.approve(above, one.key, digest=one.digest, by="ann")
            result = await task
        assert result.outcome is Outcome.COMPLETED
        assert mine.blasts == {"vein 0": 1}
        assert await runs.pending("p") == []
        (kept,) = [record.body for record in await journal.load(one.run_id) if record.kind == "approval"]
        assert (kept["by"], kept["decision"]) == ("ann", "approve")
        # The same answer may be repeated from above, another one not, also when the tree has ended.
        assert (await runs.approve(above, one.key, digest=one.digest, by="ann")).repeated
        with pytest.raises(AnswerRefused, match="ann answered before"):
            await runs.reject(above, one.key, digest=one.digest, by="bob")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"call": "1:0"},
        {"call": "2:0"},
        {"digest": "the first characters"},
        {"call": "9:0", "digest": "whole"},
    ],
    ids=["nothing", "key", "another key", "part of the digest", "whole digest, another key"],
)
async def test_an_answer_from_above_without_the_whole_digest_is_refused_with_the_run_that_waits(
    opened: Open, answer: dict[str, Any]
) -> None:
    mine = Mine()
    async with opened() as (journal, _), running(mine.front(journal)):
        (one,) = await pending(Runs(journal), "p")
        digests = {"the first characters": one.digest[:12], "whole": one.digest}
        if "digest" in answer:
            answer = {**answer, "digest": digests[answer["digest"]]}
        for decide in (Runs(journal).approve, Runs(journal).reject):
            with pytest.raises(AnswerRefused) as refused:
                await decide("p", by="ann", **answer)
            says = "run 'p:1:0:1:0' (front > middle > miner) waits about call 1:0 (blast): answer that run"
            assert says in str(refused.value)
        assert await journal.inbox("p") == []
        assert await journal.inbox(one.run_id) == []
        assert len(await Runs(journal).pending("p")) == 1


async def test_equal_calls_of_several_runs_have_a_digest_each(opened: Open) -> None:
    mine = Mine(calls=2)
    mine._middle = lambda request: _last(request) or [call("mine", task="vein")] * 2  # type: ignore[method-assign]
    async with opened() as (journal, other), running(front := mine.front(journal)) as task:
        runs = elsewhere(front, other)
        first, second = await pending(runs, "p", 2)
        assert (first.key, first.tool, first.arguments) == (second.key, second.tool, second.arguments)
        assert first.digest != second.digest
        with pytest.raises(
            AnswerRefused, match=r"run 'p:1:0:1:0' .* call 1:0 .*, run 'p:1:0:1:1' .* call 1:0 "
        ):
            await runs.approve("p", "1:0", by="ann")
        await runs.reject("p", "1:0", digest=second.digest, by="ann", why="once is enough")
        await runs.approve("p", "1:0", digest=first.digest, by="ann")
        assert (await task).outcome is Outcome.COMPLETED
        answers = [
            (run_id, record.body["decision"])
            for run_id in ("p:1:0:1:0", "p:1:0:1:1")
            for record in await journal.load(run_id)
            if record.kind == "approval"
        ]
        assert answers == [(first.run_id, "approve"), (second.run_id, "reject")]
    assert mine.blasts == {"vein": 1}


@pytest.mark.parametrize("opened", ["sqlite", "postgres"], indirect=True)  # an engine needs a shared journal
@pytest.mark.parametrize("verb", ["approve", "reject", "respond"])
async def test_an_answer_from_above_to_a_tree_that_nobody_drives_counts_when_an_engine_resumes_it(
    opened: Open, verb: str
) -> None:
    mine = Mine()
    async with opened() as (journal, other):
        async with running(mine.front(journal)):
            (one,) = await pending(Runs(journal), "p")
        async with LocalEngine(mine.front(journal), recover="resume") as engine:
            text = ("by hand",) if verb == "respond" else ()
            await getattr(Runs(other), verb)("p", *text, digest=one.digest, by="ann")
            async with asyncio.timeout(30):
                while (await other.head("p")).status != "ended":  # noqa: ASYNC110 - of another handle
                    await asyncio.sleep(0.02)
            del engine
        result = await Runs(other).result("p")
        says = {"approve": "rock of vein 0", "reject": "", "respond": "by hand"}[verb]
        assert result.outcome is Outcome.COMPLETED
        assert says in str(result.output)
        assert mine.blasts == ({"vein 0": 1} if verb == "approve" else {})


async def test_a_question_of_the_run_itself_keeps_its_address_beside_those_below(opened: Open) -> None:
    mine = Mine()
    async with opened() as (journal, _):
        front = mine.front(journal).replace(
            model=FunctionLLM(
                lambda request: _last(request) or [call("plan", task="v"), call("blast", at="door")]
            )
        )
        async with running(front) as task:
            own, below = await pending(front.runs, "p", 2)
            assert [(one.run_id, one.agents[-1]) for one in (own, below)] == [
                ("p", "front"),
                ("p:1:0:1:0", "miner"),
            ]
            await front.runs.approve("p", by="ann")
            await front.runs.approve("p", digest=below.digest, by="ann")
            assert (await task).outcome is Outcome.COMPLETED
    assert mine.blasts == {"door": 1, "vein 0": 1}


async def test_an_ask_of_the_root_gets_each_question_of_the_tree_once(opened: Open) -> None:
    mine, asked = Mine(calls=2), []

    async def ask(question: Question) -> bool:
        asked.append(question.arguments)
        return True

    async with opened() as (journal, _):
        result = await mine.front(journal, ask=ask).run("go", run_id="p")
    assert result.outcome is Outcome.COMPLETED
    assert sorted(asked) == ['{"at": "vein 0"}', '{"at": "vein 1"}']
    assert mine.blasts == {"vein 0": 1, "vein 1": 1}


async def test_a_notice_names_the_root_and_the_agents_down_to_the_run_that_waits(opened: Open) -> None:
    async with opened() as (journal, _), running(Mine().front(journal)):
        (one,) = await pending(Runs(journal), "p")
        found = await OpenNotices.read(
            journal, await journal.head(one.run_id), "https://x/{root_run_id}", 0.0
        )
        (notice,) = found.notices
        assert isinstance(notice, Notice)
        assert (notice.run_id, notice.root_run_id, notice.agents) == (one.run_id, "p", PATH)
        assert notice.text.startswith("Run p:1:0:1:0 of front > middle > miner waits for a person: blast")
        assert (notice.link, notice.body()["agents"]) == ("https://x/p", [*PATH])


async def test_the_questions_of_a_waiting_run_name_the_agents(opened: Open) -> None:
    mine = Mine()
    async with opened() as (journal, _):
        left = await mine.front(journal).run("go", run_id="p", wait="never")
        (one,) = left.questions
        assert (one.id, one.run_id, one.agents) == ("p:1:0:1:0/1:0", "p:1:0:1:0", PATH)
        assert [each.digest for each in await Runs(journal).pending("p")] == [one.digest]
        await Runs(journal).approve("p", digest=one.digest, by="ann")
        assert (await mine.front(journal).resume("p")).outcome is Outcome.COMPLETED
    assert mine.blasts == {"vein 0": 1}


async def test_a_client_of_an_mcp_server_gets_and_answers_the_questions_of_child_runs(opened: Open) -> None:
    mine = Mine(calls=2)

    async def progress(_: str) -> None:
        return

    async with opened() as (journal, _):
        served = DurableAgent(mine.front(journal), "front", "Digs.")
        run_id = await served.start("go")
        answered: dict[str, bool] = {}
        async with asyncio.timeout(60):
            while isinstance(end := await served.wait(run_id, progress), list):
                for one in end:
                    answered[one.key] = "vein 0" in one.text
                    content = {"decision": "approve" if answered[one.key] else "reject"}
                    assert await served.answer(run_id, one.key, accept=True, content=content)
        assert answered == {f"{run_id}:1:0:1:0/1:0": True, f"{run_id}:1:0:1:1/1:0": False}
        assert not end.is_error
        await served.stop()
    assert mine.blasts == {"vein 0": 1}


async def test_a_pipeline_answers_for_the_agents_of_its_stages(opened: Open) -> None:
    mine = Mine()
    async with opened() as (journal, _):
        model = FunctionLLM(lambda request: _last(request) or call("blast", at="stage"))
        stage = PromptStage(model, "Work.", tools=[mine._blast])
        pipeline = Pipeline(stage, stage, stage, stage, journal=journal, name="works", observers=())
        task = asyncio.create_task(pipeline.run("go", run_id="p"))
        (one,) = await pending(pipeline.runs, "p")
        assert one.run_id.startswith("p:")
        assert one.agents[0] == "works"
        assert await pipeline.pending("p") == [one]
        await pipeline.reject("p", digest=one.digest, by="ann", end=True)
        async with asyncio.timeout(30):
            await asyncio.wait((task,))
        assert await journal.load(one.run_id)
        assert (await journal.head(one.run_id)).outcome == "rejected"
    assert mine.blasts == {}


@tool(effect="irreversible", approval=True)
def blast(door: int) -> str:
    """Blast the door with this number; the tool of another agent with the name of the miner's."""
    raise AssertionError(door)


@pytest.mark.parametrize("opened", ["sqlite", "postgres"], indirect=True)
async def test_an_edit_is_checked_against_the_tool_of_the_run_that_asks(opened: Open) -> None:
    mine = Mine()
    async with opened() as (journal, other):
        await mine.front(journal).run("go", run_id="p", wait="never")
        (one,) = await Runs(journal).pending("p")
        stranger = Agent(FunctionLLM(lambda _: ""), name="stranger", tools=[blast], journal=other, **SILENT)
        # The front has the very tool of the miner, so it refuses an edit that the tool rejects.
        with pytest.raises(AnswerRefused, match="the edited arguments are refused") as refused:
            await mine.front(journal).approve(
                one.run_id, digest=one.digest, arguments='{"door": 1}', by="ann"
            )
        assert refused.value.kind == "edit"
        # The stranger has another one of that name, which says nothing about the miner's call.
        await stranger.approve("p", digest=one.digest, arguments='{"at": "lode"}', by="ann")
        assert (await mine.front(journal).resume("p")).outcome is Outcome.COMPLETED
    assert mine.blasts == {"lode": 1}


# ---- a cancelled tree ----

TREE = ("p", "p:1:0", "p:1:0:1:0")


async def ends(journal: Journal) -> dict[str, str]:
    """Status or outcome of each run of the tree."""
    heads = [head async for head in journal.runs() if head.graph != "engine"]
    return {head.run_id: head.outcome or head.status for head in heads}


async def resumed(front: Agent, other: Journal) -> None:
    """The host resumes the tree."""
    del other
    await front.resume("p")


async def recovered(front: Agent, other: Journal) -> None:
    """An engine of the root's agent alone resumes the tree."""
    async with LocalEngine(front, recover="resume"), asyncio.timeout(30):
        while (await other.head("p")).status != "ended":  # noqa: ASYNC110 - of another handle
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("opened", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("then", [resumed, recovered])
@pytest.mark.parametrize("target", TREE, ids=["root", "parent", "itself"])
async def test_a_cancelled_tree_that_nobody_drives_leaves_no_run_open_and_no_question(
    opened: Open, target: str, then: Callable[[Agent, Journal], Any]
) -> None:
    mine = Mine()
    async with opened() as (journal, other):
        await mine.front(journal).run("go", run_id="p", wait="never")
        runs = Runs(other)
        await runs.cancel(target, by="ann")
        # No answer has an effect any more, so nobody is asked.
        assert [await runs.pending(run_id) for run_id in TREE] == [[], [], []]
        head = await other.head(TREE[-1])
        assert (await OpenNotices.read(other, head, "", 0.0)).notices == ()
        await then(mine.front(journal), other)
        below = TREE.index(target)
        assert await ends(other) == {
            run_id: "completed" if number < below else "cancelled" for number, run_id in enumerate(TREE)
        }
        assert [await runs.pending(run_id) for run_id in TREE] == [[], [], []]
        assert await runs.list(waiting=True) == []
        with pytest.raises(RunOver):
            await runs.approve(TREE[-1], by="ann")
    assert mine.blasts == {}


async def test_what_a_resumed_run_leaves_open_ends_with_the_reason_in_its_records(opened: Open) -> None:
    mine = Mine()
    async with opened() as (journal, _):
        front = mine.front(journal)
        await front.run("go", run_id="p", wait="never")
        await journal.post("p", Posted("c", "cancel", {"why": "wrong vein"}, "ann"))
        assert (await front.resume("p")).outcome is Outcome.CANCELLED
        for run_id in TREE[1:]:
            *_, control, ended = await journal.load(run_id)
            assert (control.kind, control.body["kind"], control.body["by"]) == ("control", "cancel", "run p")
            assert control.body["why"] == "run 'p' above it has ended"
            assert (ended.kind, ended.body["outcome"], ended.body["reason"]) == (
                "ended",
                "cancelled",
                "caller",
            )
            assert await StoredRun.of(run_id, await journal.load(run_id)).unread(journal) == []
            assert (await front.runs.story(await journal.head(run_id))).ended is not None
        assert (await front.runs.result(TREE[-1])).outcome is Outcome.CANCELLED


async def test_a_descendant_with_another_living_owner_is_asked_to_stop(opened: Open) -> None:
    mine = Mine()
    async with opened() as (journal, _):
        front = mine.front(journal)
        await front.run("go", run_id="p", wait="never")
        lease = await journal.claim(TREE[-1], "another process")
        await journal.post("p", Posted("c", "cancel", {}, "ann"))
        assert (await front.resume("p")).outcome is Outcome.CANCELLED
        assert await ends(journal) == {"p": "cancelled", "p:1:0": "cancelled", TREE[-1]: "parked"}
        (request,) = await journal.inbox(TREE[-1])
        assert (request.kind, request.by) == ("cancel", "run p")
        await journal.release(lease)


async def test_a_cancelled_team_ends_its_segment_and_its_child_runs(opened: Open) -> None:
    mine = Mine()
    async with opened() as (journal, other):

        def team() -> Agent:
            model = FunctionLLM(lambda request: call("plan", task="vein"))
            digger = mine.front(journal).replace(model=model)
            hands_over = FunctionLLM(lambda request: call("transfer_to_front"))
            return Agent(hands_over, name="triage", handoffs=[digger], journal=journal, **SILENT)

        await team().run("go", run_id="p", wait="never")
        (one,) = await Runs(journal).pending("p")
        await journal.post("p", Posted("c", "cancel", {}, "ann"))
        assert await Runs(other).pending("p") == await Runs(other).pending(one.run_id) == []
        assert (await team().resume("p")).outcome is Outcome.CANCELLED
        ended = await ends(journal)
        assert ended.pop("p:s1") == "completed"
        assert set(ended.values()) == {"cancelled"}
        assert one.run_id in ended
    assert mine.blasts == {}


async def test_cancelled_branches_end_with_their_child_runs_and_calls(opened: Open) -> None:
    mine = Mine()
    async with opened() as (journal, _):

        def workflow() -> Any:
            agent = mine.front(journal)
            calls = {"agent": Branch(agent, "go"), "tool": Branch(mine._blast, {"at": "door"})}
            hooks = Hooks(lambda item: calls[item])
            spread_out = spread(Fan(max=2, join=ALL))
            return Workflow(spread_out, [hooks], output=lambda ctx: ctx.values, journal=journal, observers=())

        task = asyncio.create_task(workflow().run(SpreadContext(["agent", "tool"]), run_id="p"))
        asked = await pending(Runs(journal), "p", 2)
        task.cancel()
        await asyncio.wait((task,))
        assert set((await ends(journal)).values()) == {"parked"}
        await journal.post("p", Posted("c", "cancel", {}, "ann"))
        assert await Runs(journal).pending("p") == []
        assert (await workflow().resume("p")).outcome is Outcome.CANCELLED
        ended = await ends(journal)
        assert set(ended.values()) == {"cancelled"}
        assert {one.run_id for one in asked} < set(ended)
    assert mine.blasts == {}


@pytest.mark.parametrize("kind", ["pipeline", "ralph"])
async def test_a_cancelled_pipeline_or_ralph_loop_ends_its_child_runs_and_counts_each_once(
    opened: Open, tmp_path: Path, kind: str
) -> None:
    mine = Mine()
    async with opened() as (journal, other):

        def root(facts: Facts) -> Any:
            miner = Agent(FunctionLLM(mine._miner), name="miner", tools=[mine._blast], **SILENT)
            model, tools = FunctionLLM(mine._middle), [miner.as_tool("mine", "Mine.")]
            options: dict[str, Any] = {"journal": journal, "observers": (facts,)}
            if kind == "pipeline":
                return Pipeline(*[PromptStage(model, "Work.", tools=tools)] * 4, name="works", **options)
            agent = PromptAgent(model, folder=tmp_path, tools=tools)
            return Ralph(agent, agent, agent, root=tmp_path / "sessions", **options)

        task = asyncio.create_task(root(Facts()).run("go", run_id="p"))
        (one,) = await pending(Runs(journal), "p")
        task.cancel()
        await asyncio.wait((task,))
        assert set((await ends(journal)).values()) == {"parked"}
        await journal.post("p", Posted("c", "cancel", {}, "ann"))
        assert await Runs(other).pending("p") == []
        facts = Facts()
        assert (await root(facts).resume("p")).outcome is Outcome.CANCELLED
        ended = await ends(journal)
        assert set(ended.values()) == {"cancelled"}
        assert one.run_id in ended
        assert len(ended) == 3, "the root, the run of its model, and that of the miner"
        counted = [(fact.run_id, fact.outcome, fact.reason) for fact in facts.of(RunCompleted)]
        assert sorted(counted) == [(run_id, "cancelled", "caller") for run_id in sorted(ended)]
        with contextlib.suppress(RunOver):
            await root(facts).resume("p")
        assert len(facts.of(RunCompleted)) == 3
    assert mine.blasts == {}


async def test_the_ends_of_a_cancelled_tree_are_counted(opened: Open) -> None:
    mine = Mine()
    async with opened() as (journal, _):
        await mine.front(journal).run("go", run_id="p", wait="never")
        await journal.post("p", Posted("c", "cancel", {}, "ann"))
        metrics = Metrics(registry=(registry := CollectorRegistry()))
        front = mine.front(journal).replace(observers=(metrics,))
        assert (await front.resume("p")).outcome is Outcome.CANCELLED
        name = "orchestrator_runs_completed_total"
        labels = {"machine": "llm_loop", "outcome": "cancelled", "reason": "caller"}
        # No run of the other agents began in this process, so their names are not known here.
        counts = [registry.get_sample_value(name, labels | {"agent": agent}) for agent in ("front", "_other")]
        assert counts == [1.0, 2.0]


async def test_parents_in_a_circle_have_no_root() -> None:
    """Only a damaged journal has them; a worker that looks for the root of such a run does not look forever."""
    heads = {
        name: RunHead(name, "llm_loop", "", "open", 1, 1, None, 0.0, 0.0, parent_run_id=parent)
        for name, parent in (("a", "b"), ("b", "c"), ("c", "b"))
    }

    class Circle(MemoryJournal):
        async def head(self, run_id: str) -> RunHead:
            return heads[run_id]

    for head in heads.values():
        assert await open_root(Circle(), head) is None
        assert await open_ancestors(Circle(), head) == []
        assert next(iter(await path_to_root(Circle(), head))) == head.run_id
    assert {*await path_to_root(Circle(), heads["a"])} == {"a", "b", "c"}


# ---- events ----


def _mine_events(events: list[RunEvent]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for event in events:
        found.setdefault(event.run_id, []).append(str(event.id))
    return found


async def test_the_events_of_a_run_and_its_descendants_are_read_in_another_process_and_continued(
    opened: Open,
) -> None:
    mine = Mine(calls=2)
    async with opened() as (journal, other):
        front = mine.front(journal)
        runs = front.runs if other is journal else Runs(other)
        running = asyncio.ensure_future(front.run("go", run_id="p"))
        questions = await pending(runs, "p", 2)
        first = [event async for event in runs.tree_events("p")]
        asked = {event.run_id for event in first if isinstance(event, QuestionAsked)}
        assert asked == {question.run_id for question in questions}
        read = {event.run_id: str(event.id) for event in first}
        rest: list[RunEvent] = []

        async def follow() -> None:
            rest.extend([event async for event in runs.tree_events("p", after=read, follow=True)])

        following = asyncio.ensure_future(follow())
        for question in questions:
            await runs.approve(question.run_id, digest=question.digest)
        assert (await running).outcome == "completed"
        await asyncio.wait_for(following, 30)
        whole = [event async for event in runs.tree_events("p")]
        alone = [event for run_id in read async for event in runs.events(run_id)]
    parts = _mine_events(first + rest)
    assert parts == _mine_events(whole) == _mine_events(alone)
    assert len(parts) == 4, "front, middle and two of miner"
    ended = [event.run_id for event in rest if isinstance(event, RunFinished)]
    assert sorted(ended) == sorted(parts)


async def test_a_wrong_position_and_an_unknown_run_are_refused_for_the_events_of_a_tree() -> None:
    runs = Runs(MemoryJournal())
    with pytest.raises(ConfigError, match="after is '-1'"):
        runs.tree_events("p", after={"p": "-1"})
    with pytest.raises(RunUnknown):
        await anext(runs.tree_events("p", follow=True))
