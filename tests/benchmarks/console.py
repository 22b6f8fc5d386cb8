"""What the console costs: `python -m tests.benchmarks.console [TURNS] [BRANCHES]`.

The page of a run of 2,000 turns; the first paint of it, of a run with 1,000 branches and of their list in Chromium; the
processor time of an open tab while nothing changes; and the turns per second of an engine with and without a watching
console. The watching tab asks for its rows after each change, as htmx does. SQLite, on a disk. What pages of 100,000
runs take is measured by `python -m tests.benchmarks.listing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from orchestrator import Agent, Limits, LocalEngine, Response, SqliteJournal, Usage, tool
from orchestrator.branches import Branch, Fan
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from tests.benchmarks.stores import DISK
from tests.console.browsing import Person, Processes, chromium
from tests.runtime.branches.machine import SpreadContext, workflow

NAME: Final = "console"
TURNS, BRANCHES = 2_000, 1_000
RUN_AIM, TAB_AIM, PAINT_AIM, BYTES_AIM = 500.0, 1.0, 500.0, 200_000
"""Milliseconds of the page of a run; percent of a core of an idle tab; milliseconds and bytes of a first paint."""
PAINTED: Final = ("/runs/long", "/runs/long?content=shown", "/runs/branches", "/")
"""Pages of a journal with a long run and a run with branches."""
_UNLIMITED: Final = Limits(max_iterations=0, max_no_progress=0, max_repeated_success=0)
_ROUNDS: Final = 3
_IDLE: Final = 10.0


@dataclass(frozen=True, slots=True)
class ConsoleFigures:
    """The figures of the console."""

    paints: dict[str, tuple[float, int]]
    """Address -> median milliseconds to the first paint, and bytes; empty without Chromium."""
    run_ms: float
    tab_percent: float
    alone: float
    """Turns per second of an engine without a console."""
    watched: float


def measure(turns: int = TURNS, branches: int = BRANCHES, idle: float = _IDLE) -> ConsoleFigures:
    """Measure everything."""
    with tempfile.TemporaryDirectory(dir=DISK) as folder:
        figures = asyncio.run(_measure(Path(folder), turns, branches, idle))
        processes = Processes(Path(folder))
        try:
            return ConsoleFigures(_first_paints(processes) if shutil.which("chromium") else {}, *figures)
        finally:
            processes.stop()


async def _measure(folder: Path, turns: int, branches: int, idle: float) -> tuple[float, float, float, float]:
    path = folder / "journal.db"
    await _long_run(path, turns)
    with _served(path) as (process, console):
        run_ms = _median_of_console(console, "/runs/long")
        opened = _open_tab(console)
        await asyncio.sleep(idle / 3)  # the first answer compiles the templates
        before = _cpu_seconds(process.pid)
        await asyncio.sleep(idle)
        tab = (_cpu_seconds(process.pid) - before) / idle * 100
    opened.join()
    await _run_with_branches(path, branches)
    return run_ms, tab, *await _throughput(folder, max(turns // 20, 2))


def _first_paints(processes: Processes, calls: int = 5) -> dict[str, tuple[float, int]]:
    """Return the first paint of each page, as the browser reports it, and the bytes of the page."""
    found = {}
    with chromium() as browser:
        person = Person.at(browser, processes.console(shared=True), width=1440)
        for address in PAINTED:
            spans = []
            for _ in range(calls):
                page = person.page(address)
                spans.append(float(page.evaluate(_FIRST_PAINT)))
            found[address] = statistics.median(spans), len(page.request.get(page.url).body())
    return found


_FIRST_PAINT: Final = """
new Promise(resolve => new PerformanceObserver(list => {
  for (const entry of list.getEntriesByName("first-contentful-paint")) resolve(entry.startTime);
}).observe({type: "paint", buffered: true}))
"""
"""Waits in the page itself: the security policy of the console forbids the polling of `wait_for_function`."""


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


async def _long_run(path: Path, turns: int) -> None:
    async with SqliteJournal(path) as journal:
        answers = [Response(None, (call("look"),), usage=Usage(10, 1)) for _ in range(turns - 1)]
        agent = Agent(
            ScriptedLLM([*answers, "Done."]),
            journal=journal,
            observers=(),
            tools=[look],
            limits=_UNLIMITED,
        )
        await agent.run("Go.", run_id="long")


async def _run_with_branches(path: Path, branches: int) -> None:
    def answer(request: object) -> Response:
        return Response("Done.", usage=Usage(10, 1))

    async with SqliteJournal(path) as journal:
        reader = Agent(FunctionLLM(answer), journal=journal, observers=(), name="reader")
        spread = workflow(Fan(max=branches), lambda name: Branch(reader, name), journal=journal)
        items = [f"Read part {number}." for number in range(branches)]
        await spread.run(SpreadContext(items), run_id="branches")


async def _throughput(folder: Path, turns: int) -> tuple[float, float]:
    """Return the turns per second of an engine alone and with a watching console: medians of alternating rounds."""
    alone, watched = [], []
    for number in range(_ROUNDS):
        alone.append(await _engine(folder / f"alone-{number}.db", turns))
        path = folder / f"watched-{number}.db"
        async with SqliteJournal(path):
            pass
        with _served(path) as (_, console):
            opened = _open_tab(console)
            watched.append(await _engine(path, turns))
        opened.join()
    return statistics.median(alone), statistics.median(watched)


async def _engine(path: Path, turns: int, runs: int = 16) -> float:
    def answer(request: object) -> Response:
        done = sum(message.role == "tool" for message in request.messages)  # type: ignore[attr-defined]
        return Response("Done.", usage=Usage(10, 1)) if done >= turns else Response(None, (call("look"),))

    async with SqliteJournal(path) as journal:
        agent = Agent(FunctionLLM(answer), journal=journal, observers=(), tools=[look], limits=_UNLIMITED)
        async with LocalEngine(agent) as engine:
            started = time.perf_counter()
            handles = [await engine.submit("Go.") for _ in range(runs)]
            await asyncio.gather(*handles)
            return runs * turns / (time.perf_counter() - started)


# ---- a console in a process of its own, and a tab ----


class SignedIn(NamedTuple):
    """A console, and the headers of a browser that has signed in."""

    host: str
    headers: Mapping[str, str]


@contextmanager
def _served(path: Path) -> Iterator[tuple[subprocess.Popen[str], SignedIn]]:
    command = [sys.executable, "-m", "orchestrator", "console", "--port", "0", "--journal", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            yield process, _signed_in(found[0])
        finally:
            process.terminate()


def _signed_in(address: str) -> SignedIn:
    """Sign in with the code of the printed address."""
    parts = urlsplit(address)
    with contextlib.closing(HTTPConnection(parts.netloc, timeout=60)) as connection:
        form = {"content-type": "application/x-www-form-urlencoded"}
        connection.request("POST", parts.path, urlencode({"token": parts.fragment}), form)
        answer = connection.getresponse()
        text = answer.read()
        cookie = answer.headers.get("set-cookie")
        assert cookie is not None, text
    return SignedIn(parts.netloc, {"cookie": cookie.partition(";")[0]})


def _median_of_console(console: SignedIn, page: str, calls: int = 5) -> float:
    """Return the median milliseconds of a page of a console in another process."""
    spans = []
    with contextlib.closing(HTTPConnection(console.host, timeout=60)) as connection:
        for _ in range(calls):
            started = time.perf_counter()
            connection.request("GET", page, headers=console.headers)
            answer = connection.getresponse()
            text = answer.read()
            spans.append((time.perf_counter() - started) * 1e3)
            assert answer.status == 200, text
    return statistics.median(spans)


def _open_tab(console: SignedIn) -> Thread:
    """Follow the events of the page of runs until the console ends, in the thread that is returned.

    Like a page, ask for the rows after each change, at most once a second.
    """
    thread = Thread(target=_follow, args=(console,), daemon=True)
    thread.start()
    return thread


def _follow(console: SignedIn) -> None:
    events, pages = (HTTPConnection(console.host, timeout=60) for _ in range(2))
    with contextlib.suppress(OSError, HTTPException), contextlib.closing(events), contextlib.closing(pages):
        events.request("GET", "/events", headers=console.headers)
        stream = events.getresponse()
        while line := stream.readline():
            if line.strip() in {b"event: change", b"event: tick"}:
                pages.request("GET", "/rows", headers=console.headers)
                pages.getresponse().read()
                time.sleep(1)


def _cpu_seconds(pid: int) -> float:
    parts = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def lines(found: ConsoleFigures) -> list[str]:
    """Return the report."""
    share = found.watched / found.alone
    return [
        *(
            f"console: first paint of {address} {paint:.0f} ms, {size:,} bytes (aims: {PAINT_AIM:g} ms, {BYTES_AIM:,})"
            for address, (paint, size) in found.paints.items()
        ),
        f"console: page of a long run {found.run_ms:.0f} ms (aim: {RUN_AIM:g} ms)",
        f"console: an idle tab takes {found.tab_percent:.2f} % of a core (aim: {TAB_AIM:g} %)",
        f"console: {found.alone:.0f} turns a second of an engine, {found.watched:.0f} with a console: {share:.2f}",
    ]


if __name__ == "__main__":
    print(*lines(measure(*map(int, sys.argv[1:]))), sep="\n")
