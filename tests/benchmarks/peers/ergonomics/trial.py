"""Run a program as a user would: undisturbed, past its limit, and killed in five places and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
    place_of_request: str
    """The place at which the model kills the process."""

    def open(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start a process whose streams are pipes."""
        address = {"OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_API_KEY": "none"}
        return subprocess.Popen(
            [*self.command, *arguments],
            cwd=self.folder,
            env=os.environ | QUIET | address | {"PYTHONPATH": str(ROOT)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self, *arguments: str, stop: str = "", **environment: str) -> Process:
        """Run a process to its end; one that stops at a place is killed there."""
        process = self.open(*arguments, STOP=stop, **environment)
        if stop == self.place_of_request:
            self.kill_at_request(process)
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += f"\nit took longer than {SECONDS:g} s"
        ended = Process(process.returncode, error=(err.strip().splitlines() or [""])[-1])
        for line in map(json.loads, out.splitlines()):
            for name in {"text", "question", "receipt", "answer"} & line.keys():
                ended.shown.setdefault(name, []).append(line[name])
        return ended

    @property
    def payments(self) -> int:
        """How often the refund was paid."""
        ledger = self.folder / task.Shop().ledger
        return len(ledger.read_text(encoding="utf-8").splitlines()) if ledger.exists() else 0


Model = Callable[[Asked], Reply]


@contextmanager
def host(
    module: str, interpreter: Path, folder: Path, model: Model, place: str, kills: Callable[[Asked], bool]
) -> Iterator[Host]:
    """Have a folder and a model for the processes of a program.

    Args:
        module: The program.
        interpreter: That of the environment with its library.
        folder: Is made.
        model: Answers a request.
        place: Where a process is killed by the model.
        kills: Whether such a process is killed at a request.
    """
    victims: list[subprocess.Popen[str]] = []

    def answer(asked: Asked) -> Reply:
        if victims and kills(asked):
            victims.pop().kill()
        return model(asked)

    folder.mkdir()
    with in_a_thread(answer) as served:
        command = [str(interpreter), "-m", module]
        yield Host(command, folder, served.url, served.asked, victims.append, place)


def run(library: str, interpreter: Path, folder: Path) -> dict[str, Any]:
    """Carry out every trial of a library and return what may differ: one sentence for each place. Raises Different."""

    def opened(name: str, tokens: int = 6) -> AbstractContextManager[Host]:
        module, model = f"{task.__package__}.programs.{library}", partial(server.model, tokens=tokens)
        return host(module, interpreter, folder / name, model, PLACES[0], _after_first_tool)

    with opened("undisturbed") as undisturbed:
        _undisturbed(undisturbed)
        streams = all(asked.json.get("stream") for asked in undisturbed.requests)
    with opened("limit", tokens=10 * task.TOKENS) as limited:
        same("a run past its limit does not end well", limited.start().code > 0, True)
        same("a run past its limit pays nothing", limited.payments, 0)
    with opened("test") as tested:
        done = tested.start("test")
        same(f"its test passes ({done.error})", done.code, 0)
        same("its test asks no real model", len(tested.requests), 0)
    killed = {}
    for place in PLACES:
        with opened(place.replace(" ", "-")) as host_of_place:
            killed[place] = _killed(host_of_place, place)
    return {"streams": streams, "killed": killed}


def _after_first_tool(asked: Asked) -> bool:
    return server.results_in(asked) > 0


def _undisturbed(host: Host) -> None:
    done = host.start()
    same(f"the process ends ({done.error})", done.code, 0)
    seen = done.shown.get("text", [])[: len(server.TEXT)]
    same("the text of the model is seen as it arrives", seen, list(server.TEXT))
    same("a person is asked once", [_question(*one) for one in done.shown.get("question", ())], [_QUESTION])
    same("the typed output is the receipt", done.shown.get("receipt"), [server.RECEIPT])
    same("the refund happens once", host.payments, 1)
    same("the model is asked three times", len(host.requests), 3)
    same("the model reads the instructions", all(map(_instructed, host.requests)), True)


def _killed(host: Host, place: str) -> str:
    """Kill a process at a place, start the same program again, and return what became of the run."""
    same(f"the process is killed at the {place}", host.start(stop=place).code, -signal.SIGKILL)
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


def same(sentence: str, found: object, expected: object) -> None:
    """Raise Different unless what was found is what was expected."""
    if found != expected:
        raise Different(f"{sentence}: {found!r} instead of {expected!r}")
