"""Workers of one database, as `orchestrator worker` starts them, with a world of its own for each run.

    orchestrator worker --dsn URL --agent tests.crash.fleet:agent --name w1

The world is in the folder that FLEET_FOLDER names. FLEET_PAUSE is how many seconds a model or a tool takes, at most.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from orchestrator.kernel.fact import Fact
from orchestrator.llm.message import Message, Request, Response
from orchestrator.llm.port import FailureEpisode
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import ToolContext
from tests.crash import outside
from tests.crash.outside import Outside, Tap

ROOT = Path(__file__).resolve().parents[2]
HOLD = "hold"
"""While a file with this name is in the folder, no model and no tool returns to its run."""
_WAIT = 180.0


class Worlds:
    """The worlds of all runs: a file for each, and one that says when something began and ended, and where."""

    def __init__(self, folder: Path, pause: float = 0.0) -> None:
        self.folder = folder
        self._pause = pause
        self._chance = random.Random(os.getpid())
        self._windows = os.open(folder / "windows", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    @functools.cache  # noqa: B019 - one for the life of the process
    def of(self, run: str) -> Outside:
        """Return the world of a run."""
        return Outside(self.folder / f"{run}.jsonl", point=functools.partial(self._point, run))

    async def _point(self, run: str, name: str) -> None:
        when, _, what = name.partition(" ")
        if when == "after":
            await asyncio.sleep(self._chance.uniform(0, self._pause))
            while (self.folder / HOLD).exists():  # noqa: ASYNC110 - another process makes and removes it
                await asyncio.sleep(0.02)
        line = {"run": run, "pid": os.getpid(), "at": time.monotonic(), "when": when, "what": what}
        os.write(self._windows, orjson.dumps(line) + b"\n")

    # ---- what an agent of `outside` asks of its world ----

    def say(self, what: str, run: str, **more: Any) -> None:
        self.of(run).say(what, run, **more)

    async def model(self, request: Request) -> Response:
        return await self.of(request.messages[1].text.split()[-1]).model(request)

    async def effect(self, tool: str, context: ToolContext, turn: int) -> str:
        return await self.of(context.run_id).effect(tool, context, turn)

    async def undo(self, tool: str, context: ToolContext) -> str:
        return await self.of(context.run_id).undo(tool, context)

    async def prepare(self, key: str, messages: Sequence[Message]) -> Sequence[Message]:
        return await self.of(key).prepare(key, messages)

    async def store(self, key: str, messages: Sequence[Message]) -> None:
        await self.of(key).store(key, messages)

    async def store_failure(self, key: str, episode: FailureEpisode) -> None:
        await self.of(key).store_failure(key, episode)

    async def compact(self, key: str, summary: Message) -> None:
        raise AssertionError("these runs are short")

    def observe(self, fact: Fact) -> None:
        if fact.run_id:
            self.of(fact.run_id).observe(fact)


def agent(journal: Any) -> Agent:
    """Return the agent of a worker."""
    worlds = Worlds(Path(os.environ["FLEET_FOLDER"]), float(os.environ.get("FLEET_PAUSE", "0")))
    made: Any = outside.agent
    found: Agent = made(worlds, Tap(journal, worlds))  # type: ignore[arg-type]
    return found


class Fleet:
    """Processes that are workers of one database; each name has one at most."""

    def __init__(
        self,
        dsn: str,
        folder: Path,
        *options: str,
        pause: float = 0.0,
        agent: str = "tests.crash.fleet:agent",
    ) -> None:
        self.folder = folder
        self._command = (sys.executable, "-m", "orchestrator", "worker", "--agent", agent, *options)
        self._environment = os.environ | {
            "ORCHESTRATOR_JOURNAL": dsn,
            "FLEET_FOLDER": str(folder),
            "FLEET_PAUSE": str(pause),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.deaths: dict[int, float] = {}
        """Process -> when its kill began (monotonic)."""

    def start(self, name: str, *options: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self._command, "--name", name, *options],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def said(self, name: str) -> str:
        """Return what the workers of a name have said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def works(self, name: str) -> bool:
        """Tell whether it has said that it carries runs."""
        return "carries" in self.said(name)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        self.deaths[process.pid] = time.monotonic()
        process.kill()
        process.wait()

    def signal(self, name: str, which: signal.Signals) -> None:
        self.processes[name].send_signal(which)

    def end(self, name: str) -> int:
        """Ask a worker to stop, wait for its end, and return its exit code."""
        process = self.processes[name]
        process.terminate()
        code = process.wait(_WAIT)
        del self.processes[name]
        return code

    def close(self) -> None:
        for name in list(self.processes):
            self.processes[name].send_signal(signal.SIGCONT)
            self.kill(name)

    # ---- what happened ----

    def most_at_once(self) -> int:
        """Return how many runs were in the middle of something at once, at most: of processes that lived then.

        A process that lives may be taken for dead: it is frozen, or the server started again without it. What it is in
        the middle of is left out once another process goes on with the run, because its slot was given to others.
        """
        moments: list[tuple[float, int, str, int]] = []
        last: dict[int, float] = {}
        for text in (self.folder / "windows").read_bytes().splitlines():
            line = orjson.loads(text)
            last[line["pid"]] = max(line["at"], last.get(line["pid"], 0.0))
            if line["what"] == "prepare":
                continue  # nobody says when it is over
            moments.append((line["at"], 1 if line["when"] == "before" else -1, line["run"], line["pid"]))
        # Whoever goes on with its runs does so later than this, however late this process saw the death.
        died = {pid: max(at, last.get(pid, 0.0)) for pid, at in self.deaths.items()}
        moments.sort()
        taken = set(_taken_from_the_living(moments, died))
        open_now: dict[tuple[int, str], int] = {}
        most = 0
        for moment in sorted([*moments, *((at, 2, "", pid) for pid, at in died.items())]):
            _, change, run, pid = moment
            if change == 2:
                open_now = {key: count for key, count in open_now.items() if key[0] != pid}
                continue
            if change == 1 and moment in taken:
                continue
            count = open_now.get((pid, run), 0) + change
            open_now.pop((pid, run), None)
            if count > 0:
                open_now[pid, run] = count
            most = max(most, len(open_now))
        return most


def _taken_from_the_living(
    moments: Sequence[tuple[float, int, str, int]], died: Mapping[int, float]
) -> Iterator[tuple[float, int, str, int]]:
    """Yield what began in a process from which another took the run while that process lived."""
    later: dict[str, tuple[int, float, float]] = {}
    """Run -> process and time of its next beginning, and when another took the run from that process."""
    for moment in reversed(moments):
        at, change, run, pid = moment
        if change != 1:
            continue
        owner, next_at, taken_at = later.get(run, (pid, math.inf, math.inf))
        if owner != pid:
            taken_at = next_at
        if taken_at < died.get(pid, math.inf):
            yield moment
        later[run] = pid, at, taken_at
