"""A contestant's process: requests come as JSON lines on standard input, answers go out as JSON lines.

    {"do": "turns", "runs": 1, "turns": 50, "tools": 1, "latency": 0.005}  ->  {"us_per_turn": …, …}

An answer may instead be {"error": "what went wrong"}. What a contestant brings is a `Side`; every figure is taken
here, so that all are taken alike. Standard library only.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from tests.benchmarks.script import ANSWER, Script

Answer = dict[str, Any]
Task = Callable[..., Awaitable[Answer]]
_STOPPED = "stopped"
"""Name of the one run that is stopped and resumed."""


class Agent(Protocol):
    """Built once and run many times; a run has a name of its own and returns the model's answer."""

    def run(self, name: str) -> Awaitable[str]: ...


class Resumable(Agent, Protocol):
    """An agent whose runs are in a store."""

    def resume(self, name: str) -> Awaitable[str]: ...


@dataclass(frozen=True, slots=True)
class Side:
    """What a contestant brings: `agent(script)` and, where it has one, a store that is opened in a folder.

    `opened(folder, spans)` notes the seconds of each write in `spans`; `stored(script, store)` is the agent on it,
    `told(store)` says what the store is set to.
    """

    packages: Sequence[str]
    agent: Callable[[Script], Agent]
    opened: Callable[[str, list[float]], AbstractAsyncContextManager[Any]] | None = None
    stored: Callable[[Script, Any], Resumable] | None = None
    told: Callable[[Any], Awaitable[str]] | None = None
    storeless: str = ""
    """Why it has no store."""
    unresumable: str = ""
    """Why a run of its store that was stopped is not to be resumed."""


class Unable(Exception):
    """The contestant has no means for what is asked; the message says why."""


def serve(side: Side) -> None:
    """Carry out requests until standard input ends, each in an event loop of its own."""
    tasks: Mapping[str, Task] = {
        name: getattr(_Tasks(side), name)
        for name in ("about", "turns", "crowd", "journalled", "prepare", "resume")
    }
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # whatever a library prints must not get between the answers
        for line in sys.stdin:
            request = json.loads(line)
            gc.collect()
            try:
                answer = asyncio.run(_done(tasks[request.pop("do")], request))
            except Unable as why:
                answer = {"error": str(why)}
            except Exception as error:  # noqa: BLE001  the other cases go on
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


async def _done(task: Task, options: Mapping[str, Any]) -> Answer:
    return await task(**options)


class _Tasks:
    """What can be asked of a contestant."""

    def __init__(self, side: Side) -> None:
        self._side = side

    async def about(self, folder: str) -> Answer:
        """Name what is measured: versions, and what the store is set to."""
        answer: Answer = {"versions": {name: version(name) for name in self._side.packages}}
        if self._side.opened and self._side.told:
            async with self._side.opened(folder, []) as store:
                answer["store"] = await self._side.told(store)
        return answer

    async def turns(self, runs: int, turns: int, tools: int, latency: float) -> Answer:
        """Measure `runs` runs at once. With no tools each is `turns` runs, one after the other, of one request."""
        script = Script(turns, tools, latency)
        agent = await _rehearsed(self._side.agent, script)
        names = map(str, count())
        repeats = 1 if tools else turns
        clock = _Clock()
        if runs == 1:
            ends = [await agent.run(next(names)) for _ in range(repeats)]
        else:
            each = (_one_by_one(agent, [next(names) for _ in range(repeats)]) for _ in range(runs))
            ends = [end for ended in await asyncio.gather(*each) for end in ended]
        clock.stop()
        _proved(script, ends, runs * repeats)
        answer = clock.by(len(script.asked_at))
        if runs == 1 and len(script.asked_at) > 1:
            spans = script.iterations()
            answer |= {"p50_ms": percentile(spans, 50) * 1e3, "p95_ms": percentile(spans, 95) * 1e3}
        return answer

    async def crowd(self, runs: int, turns: int, tools: int, latency: float) -> Answer:
        """Measure `runs` runs that all wait for their last answer at the same time: memory and processor time."""
        script = Script(turns, tools, latency, held=runs)
        agent = await _rehearsed(self._side.agent, script)
        gc.collect()
        before, clock = resident_bytes(), _Clock()
        everyone = asyncio.gather(*(agent.run(str(number)) for number in range(runs)))
        waited: set[asyncio.Future[Any]] = {everyone, asyncio.ensure_future(script.reached.wait())}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if everyone.done():
            raise RuntimeError(f"the runs ended before all of them waited: {everyone.result()[0]!r}")
        clock.stop()
        gc.collect()
        held = resident_bytes() - before
        clock.go()
        script.released.set()
        ends = await everyone
        clock.stop()
        _proved(script, ends, runs)
        return clock.by(len(script.asked_at)) | {"kib_per_run": held / runs / 1024}

    async def journalled(self, folder: str, runs: int, turns: int) -> Answer:
        """Measure `runs` runs at once, in a fresh store."""
        spans: list[float] = []
        script = Script(turns)
        async with self._open(folder, spans) as store:
            agent = self._stored(script, store)
            clock, waits, syncs = _Clock(), _waits(), _syncs()
            ends = await asyncio.gather(*(agent.run(str(number)) for number in range(runs)))
            clock.stop()
            waits, syncs = _waits() - waits, _syncs() - syncs
        _proved(script, ends, runs)
        answer = {
            "turns_per_s": runs * turns / clock.seconds,
            "write_p95_ms": percentile(spans, 95) * 1e3,
            "writes_per_turn": len(spans) / runs / turns,
            "waits_per_turn": waits / runs / turns,
            "bytes_per_turn": size(folder) / runs / turns,
        }
        return answer | ({"syncs_per_turn": syncs / runs / turns} if syncs else {})

    async def prepare(self, folder: str, turns: int) -> Answer:
        """Leave a run of `turns` turns in the folder, stopped while the model was asked once more."""
        if self._side.unresumable:
            raise Unable(self._side.unresumable)
        script = Script(turns, held=1)
        async with self._open(folder, []) as store:
            await script.stop(self._stored(script, store).run(_STOPPED))
        script.proved(effects=turns, asked=turns + 1)
        return {"bytes_per_turn": size(folder) / turns}

    async def resume(self, folder: str, turns: int) -> Answer:
        """Measure from the call that resumes until the model is asked, then let the run end."""
        script = Script(turns)
        async with self._open(folder, []) as store:
            agent = self._stored(script, store)
            started = time.perf_counter()
            end = await agent.resume(_STOPPED)
        script.proved(effects=0, asked=1)
        if end != ANSWER:
            raise RuntimeError(f"the resumed run ended with {end!r}")
        return {"resume_ms": (script.asked_at[0] - started) * 1e3}

    def _open(self, folder: str, spans: list[float]) -> AbstractAsyncContextManager[Any]:
        if self._side.opened is None:
            raise Unable(self._side.storeless)
        return self._side.opened(folder, spans)

    def _stored(self, script: Script, store: Any) -> Resumable:
        if self._side.stored is None:
            raise Unable(self._side.storeless)
        return self._side.stored(script, store)


async def _rehearsed(build: Callable[[Script], Agent], script: Script) -> Agent:
    """Build the agent and run it once with one turn: imports late, fills caches, nobody's figure."""
    planned = script.turns, script.latency, script.held
    script.turns, script.latency, script.held = 1, 0.0, 0
    agent = build(script)
    _proved(script, [await agent.run("rehearsal")], 1)
    script.turns, script.latency, script.held = planned
    script.effects, script.asked_at = 0, []
    return agent


async def _one_by_one(agent: Agent, names: Iterable[str]) -> list[str]:
    return [await agent.run(name) for name in names]


def _proved(script: Script, ends: Sequence[str], runs: int) -> None:
    """Raise RuntimeError unless every run did all its work and ended with the model's answer."""
    script.proved(effects=runs * (script.requests - 1) * script.tools, asked=runs * script.requests)
    if bad := [end for end in ends if end != ANSWER]:
        raise RuntimeError(f"{len(bad)} of {runs} runs ended without the answer: {bad[0]!r}")


class _Clock:
    """Seconds by the wall and of the processor, with pauses."""

    def __init__(self) -> None:
        self.seconds = self.processor = 0.0
        self.go()

    def go(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self.seconds += time.perf_counter() - self._wall
        self.processor += time.process_time() - self._cpu

    def by(self, requests: int) -> Answer:
        """Return the figures of so many requests of the model: a turn is one, the final answer too."""
        return {
            "us_per_turn": self.seconds / requests * 1e6,
            "cpu_us_per_turn": self.processor / requests * 1e6,
            "turns_per_cpu_s": requests / self.processor,
        }


def _waits() -> int:
    """Return how often a thread of this process gave up its core, to wait for another thread or for the disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def _syncs() -> int:
    """Return the syncs of this process so far; 0 if nobody counts them (`syncs.counts_syncs`)."""
    counted = getattr(ctypes.CDLL(None), "bench_syncs", None)
    return int(counted()) if counted is not None else 0


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that so many percent stay below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def size(folder: str) -> int:
    """Return the bytes of all files under a folder. Ask when the store is closed and its log is gone."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


def resident_bytes() -> int:
    """Return the memory of this process that is not swapped out or given back."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    told = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, check=True)
    return int(told.stdout) * 1024
