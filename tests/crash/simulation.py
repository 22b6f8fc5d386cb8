"""Three agents, each as a process of its own, over one journal, in virtual time; faults strike wherever one waits.

Everything follows from the seed: which process takes up which run, what strikes it and when, what people say.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from unittest.mock import patch

import orjson

from orchestrator.errors import AnswerRefused, ConfigError, JournalError, RunExists, RunUnknown, Suspended
from orchestrator.journal.codec import encoded
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import Fact
from orchestrator.kernel.journal import Draft, Lease, Posted
from orchestrator.machines.question import Question
from orchestrator.runtime.llm_loop.agent import Agent
from tests.crash.invariants import check_run
from tests.crash.outside import History, Line, Outside, Tap, agent, happened, said_by
from tests.crash.virtual import EPOCH, VirtualClock, VirtualLoop

T = TypeVar("T")

RUNS = ("a", "b")
PROCESSES = 3
JUMPS = (-86_400.0, -3_600.0, 3_600.0, 86_400.0)
LONGEST = 3_600.0
"""Virtual seconds after which a run that has not ended will not end."""
FAULTS = ("crash", "cancel", "jump", "suspected")


class Death(BaseException):
    """The end of a process: nobody catches it, and nothing of the process is heard any more."""


class Link:
    """The journal as one process reaches it: later, and not when it is dead."""

    backend = "memory"
    shared = True

    def __init__(self, inner: Any, process: Process) -> None:
        self._inner = inner
        self._process = process

    def __getattr__(self, name: str) -> Any:
        if name == "retire":
            raise AttributeError(name)
        found = getattr(self._inner, name)
        if name == "runs":
            return found

        async def reached(*args: Any, **options: Any) -> Any:
            await self._process.wait("journal")
            answer = await found(*args, **options)
            await self._process.wait("journal")
            return answer

        return reached

    def append(self, lease: Lease, drafts: Sequence[Draft], blobs: Any = None) -> Awaitable[None]:
        self._process.must_live()
        kept = [Draft(kind, orjson.loads(encoded(kind, body))) for kind, body in drafts]
        return self._append(lease, kept)

    async def _append(self, lease: Lease, drafts: Sequence[Draft]) -> None:
        await self._process.wait("journal")
        self._inner.append(lease, drafts)
        await self._process.wait("journal")


class Process:
    """One life of one agent."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dead = False
        self.clock = VirtualClock()
        self.clock.skew = world.skew
        chance = world.chance
        at = chance.randrange(1, 40) if chance.random() < world.store_faults else 0
        self.store = CrashingJournal(world.journal, at=at, when=chance.choice(("before", "after")))
        self.outside = Outside(lines=world.lines, point=self.wait)
        link = Link(Tap(self.store, self.outside), self)
        self.agent = agent(self.outside, link, clock=self.clock, observers=(self,))
        self.owner = self.agent._service.driver.owner
        self.doing: asyncio.Task[Any] | None = None

    def observe(self, fact: Fact) -> None:
        if not self.dead and not self.store.crashed:
            self.outside.observe(fact)

    def must_live(self) -> None:
        if self.dead:
            raise Death

    async def wait(self, where: str) -> None:
        """Let time pass here, and whatever strikes."""
        self.must_live()
        await asyncio.sleep(self.world.chance.choice((0.0, 0.0, 0.001, 0.02)))
        self.must_live()
        self.world.strike(self, where)

    def die(self) -> None:
        self.dead = True
        self.world.journal.bury(self.owner)
        if self.doing is not None:
            self.doing.cancel()  # it may wait for what the dead do not hear

    async def work(self) -> None:
        """Take up whatever run there is, until all have ended, or this process has."""
        chance = self.world.chance
        while not (self.dead or self.store.crashed or await self.world.over()):
            run = chance.choice(RUNS)
            known = run in {head.run_id async for head in self.world.journal.runs()}
            going = self.agent.resume(run) if known else self.agent.run(f"go {run}", run_id=run)
            self.doing = asyncio.create_task(going)
            await asyncio.wait((self.doing,))
            self._look_at(self.doing)
            self.world.struck["store down"] += self.store.crashed
            await asyncio.sleep(chance.uniform(0, 1))
        self.die()

    def _look_at(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, JournalError | Suspended | RunExists | ConfigError):
            self.world.refusals[type(error).__name__] += 1
        elif error is not None and not self.dead:
            raise error


class World:
    """All there is, made from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.skew = 0.0
        self.lines: list[Line] = []
        self.journal = MemoryJournal(now=lambda: EPOCH + asyncio.get_running_loop().time())
        self.faults_left = self.chance.randrange(0, 13)
        self.likely = self.chance.choice((0.01, 0.03, 0.1))
        self.store_faults = self.chance.choice((0.0, 0.3))
        self.struck: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        """Kinds of records, questions and ends."""
        self.processes: list[Process] = []

    async def over(self) -> bool:
        return [head.status async for head in self.journal.runs()] == ["ended"] * len(RUNS)

    # ---- what goes wrong ----

    def strike(self, process: Process, where: str) -> None:
        """Perhaps let something happen to a process that waited; raises Death."""
        if not self.faults_left or self.chance.random() >= self.likely:
            return
        self.faults_left -= 1
        what = self.chance.choice(FAULTS)
        if what == "suspected" and not where.endswith("model"):
            what = "crash"  # a fence keeps late records out, not late effects: no zombie gets near one
        self.struck[what] += 1
        match what:
            case "cancel":
                if process.doing is not None:
                    process.doing.cancel()
            case "jump":
                self.skew += self.chance.choice(JUMPS)
                for one in self.processes:
                    one.clock.skew = self.skew
            case "suspected":
                self.journal.bury(process.owner)
                asyncio.get_running_loop().call_later(
                    60, process.die
                )  # where it waits for a person, it never hears
            case _:
                process.die()
                raise Death

    # ---- people ----

    async def people(self, desk: Agent) -> None:
        """Answer what is asked, by the truth outside; now and then pause a run, let it go on, or stop it."""
        while not await self.over():
            await asyncio.sleep(self.chance.uniform(0.01, 0.6))
            run = self.chance.choice(RUNS)
            with suppress(RunUnknown):
                for question in await desk.pending(run):
                    await self._answer(desk, run, question)
                await self._interfere(run)

    async def _answer(self, desk: Agent, run: str, question: Question) -> None:
        by = self.chance.choice(("ann", "bob"))
        there = happened(self.lines, question.tool, f"{run}:{question.key}")
        content = said_by(question.tool, int(question.key.partition(":")[0]))
        doing: Callable[[], Awaitable[None]]
        if question.why != "approval" and there:
            doing = lambda: desk.respond(run, content, question.key, digest=question.digest, by=by)  # noqa: E731
        elif self.chance.random() < 0.15:
            end = self.chance.random() < 0.3
            doing = lambda: desk.reject(run, question.key, digest=question.digest, by=by, end=end)  # noqa: E731
        else:
            doing = lambda: desk.approve(run, question.key, digest=question.digest, by=by)  # noqa: E731
        for _ in range(self.chance.choice((1, 1, 2))):
            with suppress(AnswerRefused):
                await doing()
                self.struck["answer"] += 1

    async def _interfere(self, run: str) -> None:
        kind = self.chance.choice(("pause", "resume", "cancel", *[""] * 12))
        if kind == "cancel" and self.chance.random() < 0.7:
            kind = "resume"
        if kind:
            self.struck[kind] += 1
            number = self.struck[kind] - (
                self.chance.random() < 0.2
            )  # now and then one that was posted before
            await self.journal.post(run, Posted(f"{kind} {number}", kind, {}, "ann"))

    # ---- the whole of it ----

    async def live(self) -> None:
        desk = agent(Outside(lines=self.lines), self.journal, clock=VirtualClock(), observers=())
        people = asyncio.create_task(self.people(desk))
        working: dict[asyncio.Task[None], Process] = {}
        while True:
            while len(working) < PROCESSES and not await self.over():
                process = Process(self)
                self.processes.append(process)
                working[asyncio.create_task(process.work())] = process
            if not working:
                break
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del working[task]
                task.result()
            if not await self.over():  # somebody died
                await self._check(desk, alive=True)
        await people
        await self._check(desk, alive=False)

    async def _check(self, desk: Agent, *, alive: bool) -> None:
        async for head in self.journal.runs():
            if not alive:
                records = await self.journal.load(head.run_id)
                self.seen.update(record.kind for record in records)
                self.seen.update(record.body["why"] for record in records if record.kind == "asked")
                self.seen[head.reason] += 1
            await check_run(self.journal, head.run_id, History(self.lines), agent=desk, alive=alive)


def simulated(seed: int) -> World:
    """Live through the world of a seed. Raises AssertionError where an invariant does not hold."""
    made: list[World] = []

    async def inside() -> None:
        world = World(seed)
        made.append(world)
        await asyncio.wait_for(world.live(), LONGEST)

    names = random.Random(f"names {seed}")

    def token(size: int = 32) -> str:
        return names.randbytes(size).hex()

    with patch.object(secrets, "token_hex", token):  # else ids of requests would not follow from the seed
        looped(inside())
    return made[0]


def looped(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(_unless_dead)
        return runner.run(coroutine)


def _unless_dead(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say nothing of tasks that died with their process."""
    if not isinstance(context.get("exception"), Death):
        loop.default_exception_handler(context)


def digest_of(world: World) -> str:
    """Return a digest of every record and of all that happened outside."""
    parts = [
        run.run_id.encode() + b"".join(body for _, _, _, body, _ in run.chain())
        for run in world.journal._runs.values()
    ]
    return hashlib.sha256(b"\n".join([*parts, orjson.dumps(world.lines)])).hexdigest()
