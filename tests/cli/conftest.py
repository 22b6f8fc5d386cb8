"""How the command line is called: as a process of its own, or in this one, always from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orchestrator.cli import app, main
from orchestrator.cli.lazy_group import LazyGroup
from tests.cli.nursery import Nursery, nursery

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = (sys.executable, "-W", "error", "-m", "orchestrator")
STREAMS = {"stdin", "stdout", "stderr", "env"}
"""Options of a process that a forked one can be given."""
MODELS = '''
import asyncio
import threading
import time

from orchestrator import LLMError, Response, ToolCall, tool
from orchestrator.testing import ScriptedLLM
from orchestrator.providers.scripted import call


def answers():
    return ScriptedLLM([call("look", query="moon"), "Two moons."])


def pays():
    return ScriptedLLM([[call("look", query="debts"), call("pay", amount=3)], "Done."])


def repeats():
    return ScriptedLLM([call("look", query="moon")] * 50)


def wraps_up():
    return ScriptedLLM([call("look", query="moon"), "One moon so far."])


def breaks():
    return ScriptedLLM([ValueError("the model\\nis down")])


def cut():
    return ScriptedLLM([LLMError("cut", kind="connection", partial="Two mo"), "Two moons."])


def surrogate():
    return ScriptedLLM(["half a character: \\ud83d, and \\x1b[31mred"])


def json_answer():
    return ScriptedLLM(["no json", '{"moons": 2}'])


class Model:
    model = "mine"

    async def complete(self, request):
        return Response(f"{request.messages[-1].content}?")


model = Model()
number = 7
silent = Response


async def asked(request):
    return f"{len(request.messages)} messages, the first from {request.messages[0].role}"


def broken_factory():
    raise OSError("no key")


async def hangs(request):
    await asyncio.sleep(600)


def calls_slow():
    return ScriptedLLM([call("slow")])


def calls_blocking():
    return ScriptedLLM([call("blocking")])


def blocks(request):
    time.sleep(600)


async def endless(request):
    await asyncio.sleep(0.002)
    return call("look", query=str(time.perf_counter()))


@tool(effect="pure")
def look(query: str) -> str:
    """Look it up."""
    return f"seen: {query}"


def pay(amount: int) -> str:
    """Pay."""
    with open("paid", "a") as ledger:
        ledger.write(f"{amount}\\n")
    return "paid"


async def slow() -> str:
    """Take long."""
    await asyncio.sleep(600)


def blocking() -> str:
    """Take long, in a thread."""
    threading.Event().wait(600)


def unfit(*anything):
    """No model could call this."""
'''


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Cli = Callable[..., Done]


def whole_program(group: Any = None) -> Any:
    """Return the command line, or a group of it, with the modules of all commands imported."""
    group = app.program() if group is None else group
    for name in getattr(group, "commands", ()):
        whole_program(group.load(name) if isinstance(group, LazyGroup) else group.commands[name])
    return group


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with models.py in it."""
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHESTRATOR_TRUST", str(tmp_path))  # the folder is the user's own; see `untrusted`
    return tmp_path


@pytest.fixture
def untrusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder as a checkout of another person's project: nothing in it is trusted."""
    monkeypatch.delenv("ORCHESTRATOR_TRUST")
    return folder


@pytest.fixture(scope="session")
def forking() -> Iterator[Nursery]:
    """The process that has imported the commands; `start` forks them from it."""
    with nursery(os.environ) as forks:
        yield forks


@pytest.fixture
def start(folder: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command line as a process of its own; its ends are pipes. None outlives its test.

    It is forked, except where a test gives it more than its streams and its environment.
    """
    all_started: list[subprocess.Popen[str]] = []

    def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        pipes = {
            "stdin": None,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "env": os.environ,
        } | options
        if pipes.keys() == STREAMS:
            forks = request.getfixturevalue("forking")
            all_started.append(forks.start(arguments, folder, pipes.pop("env"), *pipes.values()))
        else:
            pipes.setdefault("text", True)
            all_started.append(subprocess.Popen([*PROGRAM, *arguments], cwd=folder, **pipes))
        return all_started[-1]

    yield started
    for one in all_started:
        if one.poll() is None:
            one.kill()
            one.wait()
        for end in (one.stdin, one.stdout, one.stderr):
            if end is not None:
                end.close()


@pytest.fixture
def program(folder: Path) -> Cli:
    """Execute the command line, imports and all, for what the start itself does."""

    def ran(*arguments: str) -> Done:
        command = [*PROGRAM, *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90, check=False)
        return Done(done.returncode, done.stdout, done.stderr)

    return ran


@pytest.fixture
def process(start: Callable[..., subprocess.Popen[str]]) -> Cli:
    """Run the command line as a process of its own, to its end."""

    def ran(*arguments: str) -> Done:
        with start(*arguments) as running:
            out, err = running.communicate(timeout=90)
        return Done(running.returncode, out, err)

    return ran


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run the command line in this process: quick, for what needs no process of its own."""
    monkeypatch.syspath_prepend(str(folder))

    def ran(*arguments: str) -> Done:
        for name in ("models", "mine"):  # each test has its own
            sys.modules.pop(name, None)
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        captured = capsys.readouterr()
        return Done(end.value.code if isinstance(end.value.code, int) else -1, captured.out, captured.err)

    return ran


@pytest.fixture
def one_sentence() -> Callable[[Done], str]:
    """Assert that a command failed with one line on stderr, nothing on stdout, and return the line."""

    def only(done: Done) -> str:
        assert done.out == ""
        (line,) = done.err.splitlines()
        assert line.startswith("orchestrator: ")
        assert "Traceback" not in line
        return line

    return only


def conversation(*messages: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"id": "one", "messages": list(messages), **members}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str | None, *calls: tuple[str, str, str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": one, "type": "function", "function": {"name": name, "arguments": arguments}}
            for one, name, arguments in calls
        ]
    return message


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


class Say:
    """Builds recorded conversations."""

    conversation = staticmethod(conversation)
    user = staticmethod(user)
    says = staticmethod(says)
    result = staticmethod(result)


@pytest.fixture
def record() -> type[Say]:
    return Say


@pytest.fixture
def lines() -> Callable[[str], Sequence[dict[str, Any]]]:
    """Parse JSON lines."""
    import json

    return lambda text: [json.loads(line) for line in text.splitlines()]
