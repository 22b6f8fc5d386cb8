"""The REPL of code mode: a worker process that keeps its names, and is replaced after it was killed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from orchestrator.errors import ConfigError
from orchestrator.machines.rlm.code_mode import Answer, Broker, CodeResult
from orchestrator.repl.isolation import Isolation, ReplLimits, Sandbox
from orchestrator.repl.process import ReplError, ReplProcess, WorkerLost


class Stopwatch:
    """Runs from the start. Its caller enforces the limit in seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._began = time.monotonic()
        self._before = 0.0
        self._running = True

    @property
    def seconds(self) -> float:
        """Return the elapsed seconds."""
        return self._before + (time.monotonic() - self._began if self._running else 0.0)

    @property
    def left(self) -> float:
        """Return the remaining seconds."""
        return self.limit - self.seconds

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock for a while."""
        self._before, self._running = self.seconds, False
        try:
            yield
        finally:
            self._began, self._running = time.monotonic(), True


_BYTES_A_CHARACTER = 6
"""Maximum in a frame: an escaped control character."""
_WATCH_EVERY = 0.25
"""Seconds between checks of the folder, if the kernel does not limit it."""
_LOST = (
    "The worker that ran this was stopped: {message}. A new one takes its place: every variable, function and file is "
    "gone, `context` and the llm_ functions are there again. Define again what you need, and do less in one block."
)


class WorkerRepl:
    """A REPL in its own process; `context` is a variable in it: text or a JSON value.

    The worker starts with the first block. Use it as an async context manager, or call `close`. It runs one block at
    a time: a second one waits. A cancelled call kills the worker.

    Raises:
        ReplError: No worker can be started, or its isolation is below `sandbox.least`.

    Example:
        async with WorkerRepl("some text") as repl:
            result = await repl.run("print(len(context))")
    """

    def __init__(
        self,
        context: Any = None,
        *,
        broker: Broker | None = None,
        depth: int = 0,
        correlation_id: str = "",
        limits: ReplLimits | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        for given, kind in ((limits, ReplLimits), (sandbox, Sandbox)):
            if given is not None and not isinstance(given, kind):
                raise ConfigError(f"{given!r} is no {kind.__name__}")
        self._context = context
        self._broker = broker
        self._names = {"depth": depth, "correlation_id": correlation_id}
        self._limits = limits or ReplLimits()
        self._sandbox = sandbox or Sandbox()
        self._worker: ReplProcess | None = None
        self._turn = asyncio.Lock()
        self._number = 0
        self._closed = False

    async def isolation(self) -> Isolation:
        """Return which locks hold; start a worker if there is none."""
        async with self._turn:
            return (await self._ready()).isolation

    async def run(self, code: str, *, seconds: float | None = None) -> CodeResult:
        """Run a block; see `Repl`. Raises ReplError if no worker can be started."""
        limits = self._limits
        if seconds is not None and not seconds > 0:
            raise ConfigError(f"seconds is {seconds!r}; it must be above 0")
        async with self._turn:
            worker, watch = await self._ready(), Stopwatch(seconds or limits.seconds)
            queries: list[int] = []
            try:
                async with self._guarded(worker, watch):
                    most = _BYTES_A_CHARACTER * (limits.output_chars + limits.value_chars) + 200_000
                    done = await self._exchange(worker, {"t": "run", "code": code}, watch, most, queries)
                    dropped = done.get("dropped")
                    return CodeResult(
                        stdout=_text(done.get("stdout")) or "",
                        error=_text(done.get("error")),
                        final=_text(done.get("final")),
                        seconds=watch.seconds,
                        dropped=dropped if type(dropped) is int and dropped > 0 else 0,
                        queries=sum(queries),
                    )
            except WorkerLost as lost:
                await self._let_go()
                said = _LOST.format(message=lost)
                return CodeResult(error=said, seconds=watch.seconds, lost=lost.why, queries=sum(queries))

    async def variable(self, name: str) -> str | None:
        """Return a variable as text; see `Repl`. Also None for more than `value_chars`, or if its str() never ends."""
        async with self._turn:
            worker, watch = await self._ready(), Stopwatch(self._limits.seconds)
            try:
                async with self._guarded(worker, watch):
                    most = _BYTES_A_CHARACTER * self._limits.value_chars + 1_000
                    frame = {"t": "variable", "name": name}
                    return _text((await self._exchange(worker, frame, watch, most, [])).get("text"))
            except WorkerLost:
                await self._let_go()
                return None

    async def close(self) -> None:
        """End the worker; see `Repl`. A running block gets an error."""
        self._closed = True
        if self._worker is not None:
            self._worker.kill("exit", "the REPL was closed")
        async with self._turn:
            await self._let_go()

    async def __aenter__(self) -> Self:
        """Return `self`; nothing is started yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the REPL."""
        await self.close()

    # ---- the worker ----

    async def _ready(self) -> ReplProcess:
        if self._closed:
            raise ReplError("this REPL is closed")
        if self._worker is None:
            self._worker = await ReplProcess.start(self._context, self._limits, self._sandbox, **self._names)
        return self._worker

    async def _let_go(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.end()

    @contextlib.asynccontextmanager
    async def _guarded(self, worker: ReplProcess, watch: Stopwatch) -> AsyncIterator[None]:
        """Watch a worker while it works. Raises WorkerLost if it had to be killed."""
        watcher = asyncio.ensure_future(self._watch(worker, watch))
        try:
            yield
        except WorkerLost:
            raise
        except BaseException:  # cancelled, or a bug of ours: the state of the worker is unknown
            worker.kill("exit", "the call was cancelled")
            await asyncio.shield(self._let_go())
            raise
        finally:
            watcher.cancel()

    async def _watch(self, worker: ReplProcess, watch: Stopwatch) -> None:
        """Kill a worker that takes too long, computes too much or fills the disk, or that cannot be watched."""
        limits = self._limits
        try:
            before = worker.cpu_seconds() or 0.0
            by_hand = not worker.isolation.has("file_tree")
            while True:
                used = (worker.cpu_seconds() or before) - before
                if watch.left <= 0:
                    worker.kill("wall time", f"it ran longer than {watch.limit:g} s")
                elif used >= limits.cpu_seconds:
                    worker.kill(
                        "CPU time", f"it used more than {limits.cpu_seconds:g} s of CPU time in one block"
                    )
                elif by_hand and await asyncio.to_thread(worker.fills_disk):
                    worker.kill(
                        "disk", f"its folder exceeded {limits.disk_bytes >> 20} MB or {limits.files:,} files"
                    )
                # A single thread computes no faster than time passes: no limit can be reached before that.
                due = max(min(watch.left, limits.cpu_seconds - used), 0.01)
                await asyncio.sleep(min(due, _WATCH_EVERY) if by_hand else due)
        except Exception as error:  # noqa: BLE001  after any error no limit would be enforced
            worker.kill("exit", f"it could not be watched: {type(error).__name__}")

    async def _exchange(
        self, worker: ReplProcess, frame: dict[str, Any], watch: Stopwatch, most: int, queries: list[int]
    ) -> dict[str, Any]:
        """Send a request to the worker, answer its questions, and return its response. Raises WorkerLost."""
        self._number += 1
        await worker.send(frame | {"n": self._number})
        most = max(most, _BYTES_A_CHARACTER * self._limits.query_chars + 20 * self._limits.batch + 1_000)
        while True:
            said = await worker.receive(most)
            if said.get("t") == "done" and said.get("n") == self._number:
                return said
            asked = said.get("prompts")
            prompts: list[Any] = asked if isinstance(asked, list) else []
            fits = (
                all(isinstance(prompt, str) for prompt in prompts)
                and 0 < len(prompts) <= self._limits.batch
                and sum(map(len, prompts)) <= self._limits.query_chars
            )
            if said.get("t") != "query" or not fits:
                raise worker.kill("protocol", "it violated the protocol")
            queries.append(len(prompts))
            with watch.stopped():
                answers = await self._awaited(worker, tuple(_clean(prompt) for prompt in prompts))
            await worker.send({"answers": answers})

    async def _awaited(self, worker: ReplProcess, prompts: tuple[str, ...]) -> list[tuple[bool, str]]:
        """Return the answers while the worker lives to read them. Raises WorkerLost."""
        asking, over = asyncio.ensure_future(self._answers(prompts)), asyncio.ensure_future(worker.over())
        try:
            await asyncio.wait((asking, over), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise over.result()
            return asking.result()
        finally:
            asking.cancel()
            over.cancel()
            await asyncio.wait((asking, over))

    async def _answers(self, prompts: tuple[str, ...]) -> list[tuple[bool, str]]:
        """Return (answered, text) for each prompt."""
        if self._broker is None:
            return [(False, "there is no model to ask here")] * len(prompts)
        try:
            answers: Sequence[Answer] = await self._broker(prompts)
        except Exception as error:  # noqa: BLE001  raised again where the question was asked
            answers = [error] * len(prompts)
        if len(answers) != len(prompts):
            answers = [ReplError(f"{len(answers)} answers for {len(prompts)} questions")] * len(prompts)
        return [
            (True, one) if isinstance(one, str) else (False, str(one) or type(one).__name__)
            for one in answers
        ]


def _clean(text: str) -> str:
    """Return text that can be sent and stored: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _text(value: object) -> str | None:
    return _clean(value) if isinstance(value, str) else None
