"""The situation that an alert describes: a live engine with runs in trouble, runs of the command line, and dead ones.

A prompt says what becomes of a run: its model and its tools do what models and tools do to a team on call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from orchestrator import Agent, LocalEngine, SqliteJournal, tool
from orchestrator.errors import LLMError, NotAdmitting, RunUnknown
from orchestrator.kernel.graph import Edge, bounding
from orchestrator.kernel.journal import RunHead
from orchestrator.llm.message import Request
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.providers.scripted import Answer, FunctionLLM, call
from tests.crash.test_disk import ROOT

LIMIT = 60.0
"""Seconds for what takes none."""
SLOTS = 8

DOUBT = LLM_LOOP.extend(
    without=[("update_budgets", "budget_ok")],
    edges=[Edge("budget_ok", ("update_budgets",), "await_llm", bounding(lambda ctx: ctx.no_such_field))],
)
"""A guard that raises, on the edge of the next turn."""
STRAY = LLM_LOOP.extend(
    states=("review",),
    events=("approved",),
    without=[("handle_completion", "completion_success")],
    edges=(
        Edge("completion_success", ("handle_completion",), "review"),
        Edge("approved", ("review",), "finalize"),
        Edge("failure", ("review",), "terminate_error"),
    ),
)
"""A state whose hook returns an event that the table does not allow there."""


class StrayHook:
    """The hook of that state."""

    async def enter_review(self, run: Any) -> str:
        return "budget_ok"


class BrokenHook:
    """A hook that raises."""

    async def leave_await_llm(self, run: Any) -> None:
        raise ZeroDivisionError("a hook of the new version")


AGENT_OF = {"doubts": "doubting", "strays": "straying", "breaks": "broken"}
"""First word of a prompt -> its agent; `support` for all others."""
CALLS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "asks": (("pay", {"amount": 1}),),
    "looks": (("look", {"at": "hang"}),),
    "burns": tuple(("look", {"at": str(turn)}) for turn in range(5)),
    "invents": (("no_such_tool", {}),),
    "doubts": (("look", {"at": "once"}),),
    "books": (("book", {"seat": 7}),),
    "dies": (("die", {}),),
}
"""First word of a prompt -> the calls of its model, one a turn."""
HANGING = ("waits", "burns", "invents")
"""First words of prompts whose model does not answer after that."""

AGENTS = """
import time
from pathlib import Path
from orchestrator import tool
from orchestrator.errors import LLMError
from orchestrator.providers.scripted import FunctionLLM, call

def _answer(request):
    prompt = next(one.text for one in request.messages if one.role == "user")
    turns = sum(one.role == "assistant" for one in request.messages)
    if prompt == "circle":
        return call("look", number=turns) if turns < 5 else "round"
    if prompt == "broken" and not Path("repaired").exists():
        raise LLMError("the service is down", kind="server_error", status=503)
    while prompt == "hangs" and not Path("repaired").exists():
        time.sleep(0.01)
    return "done"

def model():
    return FunctionLLM(_answer, model="m")

@tool(effect="pure")
def look(number: int) -> str:
    "Look."
    return str(number)
"""


def mitigations(name: str) -> list[str]:
    """Return the commands of a runbook without their comments."""
    text = (files("orchestrator.ops") / "files" / "runbooks" / f"{name}.md").read_text()
    block = text.partition("## Mitigate")[2].partition("```sh\n")[2].partition("```")[0]
    return [line.partition("  # ")[0].strip() for line in block.splitlines()]


def typed(line: str, words: Mapping[str, str]) -> list[str]:
    """Return a command of a runbook with its words in capital letters replaced; `runs cancel RUN` may have its own.

    `words` has `RUN`, or for one command `cancel RUN`. A word that it lacks raises KeyError.
    """
    _, group, *rest = shlex.split(line)
    command = rest[0] if rest else ""

    def put(word: str) -> str:
        return words.get(f"{command} {word}") or words[word] if word.isupper() else words.get(word, word)

    return [group, *map(put, rest)]


class Model:
    """Answers by the first word of a prompt."""

    async def __call__(self, request: Request) -> Answer:
        prompt = next(one.text for one in request.messages if one.role == "user").split()[0]
        turns = sum(one.role == "assistant" for one in request.messages)
        calls = CALLS.get(prompt, ())
        if turns < len(calls):
            return call(calls[turns][0], **calls[turns][1])
        if prompt == "fails":
            raise LLMError("no answer", kind="server_error", status=500)
        while prompt == "blocks":
            time.sleep(0.2)  # noqa: ASYNC251 - that is the incident
            await asyncio.sleep(0.01)
        if prompt in HANGING:
            await asyncio.Event().wait()
        return "done"


@tool(effect="pure")
async def look(at: str) -> str:
    """Look somewhere."""
    if at == "hang":
        await asyncio.Event().wait()
    return at


@tool(effect="irreversible", approval=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


async def _unbook(seat: int) -> None:
    """Give a seat back."""
    raise LookupError(f"nobody answers about seat {seat}")


@tool(effect="compensable", undo=_unbook)
async def book(seat: int) -> str:
    """Book a seat; the office takes its time."""
    await asyncio.Event().wait()
    return f"seat {seat}"


@tool(effect="pure")
async def die() -> str:
    """Use more memory than there is: the kernel kills the process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def agents_on(journal: SqliteJournal) -> dict[str, Agent]:
    """Return the agents of the process."""

    def agent(name: str, **options: Any) -> Agent:
        return Agent(
            FunctionLLM(Model(), model="m"),
            name=name,
            tools=[look, pay, book, die],
            retry=RetryPolicy(attempts=2, base=0.01, max_delay=0.01),
            journal=journal,
            observers=(),
            **options,
        )

    return {
        "support": agent("support"),
        "doubting": agent("doubting", graph=DOUBT),
        "straying": agent("straying", graph=STRAY, hooks=[StrayHook()]),
        "broken": agent("broken", hooks=[BrokenHook()]),
    }


async def serve(path: Path, slots: int, recover: Any) -> None:
    """Start each run whose id is a line of standard input, until its end."""
    async with SqliteJournal(path) as journal:
        options = {"name": "front", "recover": recover, "slots": slots, "grace": 0.1}
        async with LocalEngine(agents_on(journal), **options) as engine:
            print("ready", flush=True)  # noqa: T201
            while run := (await asyncio.to_thread(sys.stdin.readline)).strip():
                with contextlib.suppress(NotAdmitting):
                    prompt = run.replace("-", " ")
                    agent = AGENT_OF.get(prompt.split()[0], "support")
                    await engine.submit(prompt, run_id=run, agent=agent)


class Incident(AbstractContextManager["Incident"]):
    """A live engine in a process, on the journal of a folder. `recover` is what it does with runs of dead ones."""

    def __init__(self, folder: Path, slots: int = SLOTS, recover: str = "list") -> None:
        self.path = folder / "journal.db"
        typed = [sys.executable, "-m", "tests.dashboards.incident", str(self.path), str(slots), recover]
        self._process = subprocess.Popen(
            typed, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()

    def dies(self) -> None:
        """Wait until the process has been killed."""
        self._process.wait(LIMIT)

    def start(self, *runs: str) -> None:
        """Start runs; the first word of an id says what becomes of it."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{run}\n" for run in runs))
        self._process.stdin.flush()

    def head(self, run: str) -> RunHead:
        """Return the head of a run."""
        return read(self.path, run)

    def until(self, run: str, ready: Callable[[RunHead], bool]) -> RunHead:
        """Return the head of a run as soon as it is as expected."""
        ends = time.monotonic() + LIMIT
        while True:
            with contextlib.suppress(RunUnknown):
                if ready(head := self.head(run)):
                    return head
            assert time.monotonic() < ends, run
            time.sleep(0.01)

    def ended(self, run: str) -> str:
        """Return the outcome of a run as soon as it has ended."""
        return self.until(run, lambda head: head.status == "ended").outcome

    def reaches(self, run: str, state: str) -> None:
        """Wait until a run is in a state."""
        self.until(run, lambda head: head.state == state)

    def calls(self, run: str) -> None:
        """Wait until a run has begun to call a tool."""

        async def begun() -> bool:
            async with SqliteJournal(self.path, only_reads=True) as journal:
                return "intent" in {record.kind for record in await journal.load(run)}

        self.until(run, lambda _: asyncio.run(begun()))


def read(path: Path, run: str) -> RunHead:
    """Return the head of a run of a journal."""

    async def opened() -> RunHead:
        async with SqliteJournal(path, only_reads=True) as journal:
            return await journal.head(run)

    return asyncio.run(opened())


def by_command_line(folder: Path, run: str, prompt: str, *options: str) -> subprocess.Popen[str]:
    """Start `orchestrator run` in a process, on the journal of the folder."""
    (folder / "agents.py").write_text(AGENTS)
    about = ["--model", "python:agents:model", "--tool", "agents:look", "--run-id", run, *options]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "orchestrator",
            "run",
            prompt,
            *about,
            "--journal",
            str(folder / "journal.db"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), os.environ["PYTHONPATH"]))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
