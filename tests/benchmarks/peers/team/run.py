"""Run the programs and write `results/team.json`: `make bench-features ARGS=--team`, about five minutes.

Each is run as `trial` says, in an environment with its library; then all take turns at the same work for the processor
time. A part of them (`--libraries`) writes nothing.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.ergonomics.run import LIBRARIES, Library, interpreter_of, versions_of
from tests.benchmarks.peers.ergonomics.trial import Different, Host, same
from tests.benchmarks.peers.team import script
from tests.benchmarks.peers.team.trial import opened, run
from tests.benchmarks.quiet import now, others_between

PROGRAMS = Path(__file__).with_name("programs")
RESULTS = Path(__file__).parents[2] / "results" / "team.json"
ROUNDS = 15
"""Rounds of the processor time; each program does the work once in each."""
_WARM = 2
"""Rounds before them that nobody counts: imports that come late, filled caches."""


def results() -> dict[str, Any]:
    """Return what was observed when the programs ran."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def main(root: Path, libraries: str) -> None:
    """Run the programs of these libraries (names with commas between; empty means all), print, and write."""
    chosen = [one for one in LIBRARIES if not libraries or one.name in libraries.split(",")]
    interpreters = {library: interpreter_of(library, root) for library in chosen}
    with tempfile.TemporaryDirectory() as folder:
        killed = {}
        for library, interpreter in interpreters.items():
            inside = Path(folder, library.name)
            inside.mkdir()
            killed[library.name] = run(library.name, interpreter, inside)
            print(f"{library.title:15} was killed: {killed[library.name]}", flush=True)
        before = now()
        cpu = processor_time(interpreters, Path(folder, "rounds"))
        busy = round(others_between(before, now()), 2)
    for name, times in cpu.items():
        print(f"{name:15} µs of CPU: {statistics.median(times):,.0f} ({min(times):,.0f}-{max(times):,.0f})")
    programs = {
        library.name: {
            "versions": versions_of(interpreter, library.packages),
            "killed": killed[library.name],
            "cpu_us": cpu[library.name],
        }
        for library, interpreter in interpreters.items()
    }
    print(f"other processes used {busy} cores while the processor time was taken")
    if len(chosen) == len(LIBRARIES):
        content = {"taken": time.strftime("%Y-%m-%d"), "busy_cores": busy, "programs": programs}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"written: {RESULTS}")


def processor_time(interpreters: dict[Library, Path], folder: Path) -> dict[str, list[int]]:
    """Return the µs of CPU of each round; the programs take turns, each in a process that stays."""
    folder.mkdir()
    times: dict[str, list[int]] = {library.name: [] for library in interpreters}
    with ExitStack() as stack:
        rounds = {}
        for library, interpreter in interpreters.items():
            inside = folder / library.name
            host = stack.enter_context(opened(library.name, interpreter, inside))
            rounds[library.name] = stack.enter_context(_rounds(host))
        for number in range(_WARM + ROUNDS):
            for name, one in rounds.items():
                taken = one(number)
                times[name] += [taken] if number >= _WARM else []
    return times


@contextmanager
def _rounds(host: Host) -> Iterator[Callable[[int], int]]:
    """Have a process that does the work each time it is called, and a function that returns its µs of CPU."""
    with host.open("rounds") as process:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise TypeError("the process has no pipes")
        asks, answers, errors = process.stdin, process.stdout, process.stderr

        def one(number: int) -> int:
            folder, before = host.folder / str(number), len(host.requests)
            folder.mkdir()
            with suppress(BrokenPipeError):  # it has ended, and its last line says why
                print(folder, file=asks, flush=True)
            answer = None
            for line in map(json.loads, answers):
                answer = line.get("answer", answer)
                if "cpu_us" in line:
                    same("the customer reads the answer", answer, script.ANSWERS[0])
                    same("the model is asked", len(host.requests) - before, len(script.SPEAKERS))
                    return int(line["cpu_us"])
            raise Different(f"its process ended: {errors.read().strip().splitlines()[-1:]}")

        try:
            yield one
        finally:
            process.kill()
