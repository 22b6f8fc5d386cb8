"""One library and one feature: processes that die, wait or end, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.contestant import QUIET, ROOT
from tests.benchmarks.peers.features.probe import ANSWER

SECONDS = 60.0
"""Time for one process."""


class Cell(NamedTuple):
    """What a library does about a feature: a word for the table, and the observation behind it."""

    value: str
    observed: str


class Unable(Exception):
    """The library has no means for a scenario; `cell` says why."""

    def __init__(self, cell: Sequence[str]) -> None:
        super().__init__(*cell)
        self.cell = Cell(*cell)


class Broken(Exception):
    """A probe did not do its work, so that nothing was observed."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Runs scenarios of one library in processes of its interpreter; `folder` is theirs."""

    interpreter: Path
    module: str
    folder: Path

    def run(self, scenario: str, stop: str = "", *, dies: bool = False) -> dict[str, Any]:
        """Return what a process observed. With `dies` it must be killed. Raises Unable, Broken."""
        process = self._start(scenario, stop)
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Broken(f"{scenario} took longer than {SECONDS:g} s") from None
        if process.returncode == -signal.SIGKILL and dies:
            return {}
        if process.returncode or not out.strip():
            raise Broken(f"{scenario} ended with {process.returncode}: {err.strip().splitlines()[-1:]}")
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        if why := found.get("unable"):
            raise Unable(why)
        if dies:
            raise Broken(f"{scenario} did not die: {found}")
        return found

    @contextmanager
    def running(self, scenario: str, stop: str) -> Iterator[None]:
        """Have a process that waits in its tool inside the block. Raises Unable, Broken."""
        process = self._start(scenario, stop)
        ends = time.monotonic() + SECONDS
        try:
            while not self.count("tool"):
                if process.poll() is not None:
                    found = json.loads((process.stdout.read() if process.stdout else "") or "{}")
                    raise (
                        Unable(found["unable"]) if "unable" in found else Broken(f"{scenario} ended: {found}")
                    )
                if time.monotonic() > ends:
                    raise Broken(f"{scenario} did not come to its tool")
                time.sleep(0.02)
            yield
        finally:
            process.kill()
            process.communicate()

    def count(self, what: str) -> int:
        """Return how often the tool ran or the model was asked, in all processes."""
        file = self.folder / what
        return file.stat().st_size if file.exists() else 0

    @property
    def counts(self) -> str:
        """The counts in words."""
        return f"tool ran {self.count('tool')} ×, model asked {self.count('model')} ×"

    @property
    def in_host_file(self) -> bool:
        """Whether the probe had to store the state itself, as the library's user would."""
        return (self.folder / "host").exists()

    def _start(self, scenario: str, stop: str) -> subprocess.Popen[str]:
        command = [
            self.interpreter,
            "-m",
            f"tests.benchmarks.peers.features.{self.module}",
            scenario,
            self.folder,
        ]
        return subprocess.Popen(
            [*map(str, command), "--stop", stop],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | QUIET,
        )


Judge = Callable[[Trial], Cell]


def _word(trial: Trial, *, ok: bool) -> str:
    return "no" if not ok else "host" if trial.in_host_file else "yes"


def killed(place: str) -> Judge:
    """Kill a run in its tool or in its second request of the model; another process must end it with one effect."""

    def judge(trial: Trial) -> Cell:
        trial.run("run", f"kill in {place}", dies=True)
        found = trial.run("resume")
        ok = found.get("output") == ANSWER and trial.count("tool") == 1
        said = found.get("error") or found.get("note", "").removeprefix("; ")
        return Cell(_word(trial, ok=ok), "; ".join(filter(None, (trial.counts, said))))

    return judge


def shared(trial: Trial) -> Cell:
    """Resume a run that another process works on: it must be refused, and the tool must not run again."""
    with trial.running("run", "wait in tool"):
        found = trial.run("resume")
    ok = "refused" in found and trial.count("tool") == 1
    return Cell(_word(trial, ok=ok), "refused" if ok else trial.counts)


def asked(trial: Trial) -> Cell:
    """Kill a process whose run asks a person; the answer is given in another one."""
    trial.run("ask", dies=True)
    before = trial.count("tool")
    found = trial.run("answer")
    ok = (before, trial.count("tool"), found.get("output")) == (0, 1, ANSWER)
    return Cell(_word(trial, ok=ok), found.get("error") or trial.counts)


def talked(trial: Trial) -> Cell:
    """Say something in two processes; the model must see the first in the second."""
    seen = [trial.run("talk").get("output") for _ in range(2)]
    ok = None not in seen and int(str(seen[1])) > int(str(seen[0]))
    return Cell(_word(trial, ok=ok), f"the model saw {seen[0]}, then {seen[1]} messages")


def observed(scenario: str) -> Judge:
    """Return the judge of a scenario that decides by itself."""

    def judge(trial: Trial) -> Cell:
        found = trial.run(scenario)
        if why := found.get("error"):
            raise Broken(why)
        return Cell(found.get("value") or _word(trial, ok=found["ok"]), found["observed"])

    return judge
