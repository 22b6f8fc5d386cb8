"""What the tests of MCP servers share: where the program notes things, its process, and runs that use its tools."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvicorn

from orchestrator import Agent
from orchestrator.llm.message import ToolCall
from orchestrator.providers.mcp import McpServer, session
from orchestrator.providers.scripted import Item, ScriptedLLM
from orchestrator.runtime.llm_loop.result import Result
from tests.engines.stage import until
from tests.ports import free_port
from tests.with_runtime import with_runtime

T = TypeVar("T")
PROGRAM = Path(__file__).with_name("mcp_program.py")
ASKER = Path(__file__).with_name("mcp_asker.py")


def noted(folder: Path, file: str) -> list[str]:
    """The lines that the program wrote to one of its files."""
    path = folder / file
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def living(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def call(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall("", name, arguments)


async def ran(tools: Iterable[Any], script: Iterable[Item], **options: Any) -> Result:
    """Run a script over the tools; all of the script is used."""
    llm = ScriptedLLM(script)
    result = await Agent(llm, tools=[*tools], **with_runtime(observers=(), **options)).run("Go.")
    llm.assert_complete()
    return result


def results(result: Result) -> list[tuple[str, bool]]:
    """What the model read of its calls: text, and whether it was an error."""
    return [(message.text, message.is_error) for message in result.messages if message.role == "tool"]


def answers(result: Result) -> list[str]:
    """The texts of calls of which none failed."""
    read = results(result)
    assert not any(failed for _, failed in read), read
    return [text for text, _ in read]


@dataclass(frozen=True)
class Shop:
    """One server that several tests share, in an event loop that outlives them: starting one takes seconds."""

    folder: Path
    server: McpServer
    runner: asyncio.Runner

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)


@contextmanager
def shared(folder: Path, server: McpServer) -> Iterator[Shop]:
    """Connect a server for several tests; nothing of it is left afterwards.

    After a call without an answer it has a minute to answer again: with the usual three seconds a busy machine gives
    it up, and the tests that count its processes find another one.
    """
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_ALIVE", 60.0)
        runner.run(server.__aenter__())
        yield Shop(folder, server, runner)
        runner.run(server.__aexit__(None, None, None))
        assert not asyncio.all_tasks(runner.get_loop())
        runner.run(_ended(folder))


async def _ended(folder: Path) -> None:
    """Wait for the ends of the processes that the program noted: the SDK does not wait for one that it kills."""
    await until(lambda: not [pid for pid in map(int, noted(folder, "pid")) if living(pid)])


@asynccontextmanager
async def nothing_left(folder: Path) -> AsyncIterator[None]:
    """What is inside leaves no task behind, and none of the processes that the program noted."""
    before = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() == before
    await _ended(folder)


@asynccontextmanager
async def by_stdio(folder: Path, **options: Any) -> AsyncIterator[McpServer]:
    """The program over standard input and output; nothing of it is left afterwards."""
    program = McpServer.stdio(sys.executable, str(PROGRAM), str(folder), **options)
    async with nothing_left(folder), program as server:
        yield server


@contextmanager
def served_here(program: Path, folder: Path) -> Iterator[str]:
    """Serve a program over HTTP in a thread of this process; yield its address. Its imports alone take two seconds."""
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as listening:
        patch.setattr(sys, "argv", [str(program), str(folder)])
        spec = spec_from_file_location(f"{program.stem}_here", program)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        app = module.server.streamable_http_app()
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            thread.join()


@asynccontextmanager
async def by_http(
    folder: Path, *words: str, port: int | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The program over HTTP on loopback, killed at the end if it still lives; its port is noted in `port`."""
    started = len(noted(folder, "port"))
    port = free_port() if port is None else port  # one that the program finds free again after it was killed
    environment = {"PATH": os.environ["PATH"]}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), str(folder), "http", str(port), *words, env=environment
    )
    try:
        await until(lambda: len(noted(folder, "port")) > started or process.returncode is not None, 60)
        assert process.returncode is None
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def address(folder: Path) -> str:
    return f"http://127.0.0.1:{noted(folder, 'port')[-1]}/mcp"
