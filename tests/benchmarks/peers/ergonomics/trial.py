"""Run a program as a user would: undisturbed, past its limit, and killed in five places and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.contestant import QUIET, ROOT
from tests.benchmarks.peers.ergonomics import server, task
from tests.providers.loopback import Asked, Reply, in_a_thread

SECONDS = 60.0
"""Time for one process."""
PLACES = ("model request", "pure tool", "question", "irreversible tool", "end")
"""Where a process is killed: while the model answers after the first tool, in each tool, while a person is asked, and
after the output was shown."""
RESUMED = "resumed"


class Different(Exception):
    """A program did not do the work."""


@dataclass(slots=True)
class Process:
    """One process of a program, when it has ended."""

    code: int
    shown: dict[str, list[Any]] = field(default_factory=dict)
    """What it printed with `task`; a program may print other lines, such as a log."""
    error: str = ""
    """The last line of its standard error."""


@dataclass(slots=True)
class Host:
    """A folder and a model for the processes of one program."""

    command: list[str]
    folder: Path
    url: str
    requests: list[Asked]
    kill_at_request: Callable[[subprocess.Popen[str]], None]

    def start(self, *arguments: str, stop: str = "") -> Process:
        """Run a process to its end; one that stops at a place is killed there."""
        address = {"OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_API_KEY": "none"}
        environment = os.environ | QUIET | address | {"PYTHONPATH": str(ROOT), "STOP": stop}
        process = subprocess.Popen(
            [*self.command, *arguments],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if stop == PLACES[0]:
            self.kill_at_request(process)
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += f"\nit took longer than {SECONDS:g} s"
        ended = Process(process.returncode, error=(err.strip().splitlines() or [""])[-1])
        for line in map(json.loads, out.splitlines()):
            for name in {"text", "question", "receipt"} & line.keys():
                ended.shown.setdefault(name, []).append(line[name])
        return ended

    @property
    def payments(self) -> int:
        """How often the refund was paid."""
        ledger = self.folder / task.Shop().ledger
        return len(ledger.read_text(encoding="utf-8").splitlines()) if ledger.exists() else 0


@contextmanager
def _host(library: str, interpreter: Path, folder: Path, tokens: int = 6) -> Iterator[Host]:
    victims: list[subprocess.Popen[str]] = []

    def answer(asked: Asked) -> Reply:
        if victims and server.results_in(asked):
            victims.pop().kill()
        return server.model(asked, tokens)

    folder.mkdir()
    with in_a_thread(answer) as model:
        module = f"{task.__package__}.programs.{library}"
        yield Host([str(interpreter), "-m", module], folder, model.url, model.asked, victims.append)


def run(library: str, interpreter: Path, folder: Path) -> dict[str, Any]:
    """Carry out every trial of a library and return what may differ: one sentence for each place. Raises Different."""
    host = partial(_host, library, interpreter)
    with host(folder / "undisturbed") as undisturbed:
        _undisturbed(undisturbed)
        streams = all(asked.json.get("stream") for asked in undisturbed.requests)
    with host(folder / "limit", tokens=10 * task.TOKENS) as limited:
        _same("a run past its limit does not end well", limited.start().code > 0, True)
        _same("a run past its limit pays nothing", limited.payments, 0)
    with host(folder / "test") as tested:
        done = tested.start("test")
        _same(f"its test passes ({done.error})", done.code, 0)
        _same("its test asks no real model", len(tested.requests), 0)
    killed = {}
    for place in PLACES:
        with host(folder / place.replace(" ", "-")) as host_of_place:
            killed[place] = _killed(host_of_place, place)
    return {"streams": streams, "killed": killed}


def _undisturbed(host: Host) -> None:
    done = host.start()
    _same(f"the process ends ({done.error})", done.code, 0)
    seen = done.shown.get("text", [])[: len(server.TEXT)]
    _same("the text of the model is seen as it arrives", seen, list(server.TEXT))
    _same("a person is asked once", [_question(*one) for one in done.shown.get("question", ())], [_QUESTION])
    _same("the typed output is the receipt", done.shown.get("receipt"), [server.RECEIPT])
    _same("the refund happens once", host.payments, 1)
    _same("the model is asked three times", len(host.requests), 3)
    _same("the model reads the instructions", all(map(_instructed, host.requests)), True)


def _killed(host: Host, place: str) -> str:
    """Kill a process at a place, start the same program again, and return what became of the run."""
    _same(f"the process is killed at the {place}", host.start(stop=place).code, -signal.SIGKILL)
    before = len(host.requests)
    again = host.start()
    if again.code or again.shown.get("receipt") != [server.RECEIPT]:
        return f"lost the run: {again.error}"
    if host.payments != 1:
        return f"paid {host.payments} times"
    if any(not server.results_in(asked) for asked in host.requests[before:]):
        return "started over"
    if place == PLACES[-1] and len(host.requests) > before:
        return "asked the model again"
    return RESUMED


_QUESTION = (*server.CALLS[-1], "approval")


def _question(tool: str, arguments: Any, why: str) -> tuple[str, Any, str]:
    return tool, json.loads(arguments) if isinstance(arguments, str) else arguments, why


def _instructed(asked: Asked) -> bool:
    return task.INSTRUCTIONS in asked.body.decode() and task.PROMPT in asked.body.decode()


def _same(sentence: str, found: object, expected: object) -> None:
    if found != expected:
        raise Different(f"{sentence}: {found!r} instead of {expected!r}")
