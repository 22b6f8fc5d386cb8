"""Agents inside the programs that host them: threads, event loops of others, test runners, notebooks, task queues."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator import Agent, Request, Runs, SqliteJournal, ToolCall, tool
from orchestrator.errors import ConfigError
from orchestrator.testing import FunctionLLM
from tests.examples.service_client import Client
from tests.hosts.conftest import Host
from tests.ports import free_port


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process and its children when the block is left."""
    try:
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def serves(host: Host, *server: str, path: str = "/ask?prompt=Mars") -> Client:
    """Wait until a server answers with the result of a run."""
    client = Client(int(server[-1].rpartition(":")[2]))
    client.until(lambda: client.get(path)["output"] == "Mars: 2")
    return client


# ---- threads and loops ----


def test_plain_threads_run_one_agent_at_the_same_time(tmp_path: Path) -> None:
    agent = Agent(FunctionLLM(lambda request: request.messages[-1].text), observers=())
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda number: agent.run_sync(f"n{number}").output, range(40)))
    assert outputs == [f"n{number}" for number in range(40)]


def test_plain_threads_share_an_agent_with_a_journal_and_are_answered_from_another_thread(
    tmp_path: Path,
) -> None:
    @tool(approval=True)
    def pay(number: int) -> str:
        """Pay."""
        return f"paid {number}"

    def answers(request: Request) -> str | ToolCall:
        last = request.messages[-1]
        call = ToolCall("1", "pay", json.dumps({"number": int(last.text)})) if last.role == "user" else None
        return call or last.text

    agent = Agent(
        FunctionLLM(answers), tools=[pay], journal=SqliteJournal(tmp_path / "runs.db"), observers=()
    )
    names = [str(number) for number in range(20)]

    async def approve() -> None:  # as another process, which has only the journal
        async with SqliteJournal(tmp_path / "runs.db") as journal:
            runs, left = Runs(journal), set(names)
            while left:
                for head in await runs.list(waiting=True):
                    if head.run_id in left:
                        await runs.approve(head.run_id, by="ann")
                        left.discard(head.run_id)
                await asyncio.sleep(0.01)

    with ThreadPoolExecutor(6) as pool:
        approving = pool.submit(asyncio.run, approve())
        running = [pool.submit(agent.run_sync, name, run_id=name) for name in names]
        assert [one.result().output for one in running] == [f"paid {name}" for name in names]
        approving.result()
        assert pool.submit(lambda: asyncio.run(agent.resume("3")).output).result() == "paid 3"


async def test_run_sync_inside_a_loop_says_what_to_await() -> None:
    agent = Agent(FunctionLLM(lambda request: "done"), observers=())
    with pytest.raises(ConfigError, match=r"use `await agent\.run\(\.\.\.\)` there"):
        agent.run_sync("go")
    assert (await asyncio.to_thread(agent.run_sync, "go")).output == "done"


TRIO = """
import trio
from hosted import agent
from orchestrator import LocalEngine, SqliteJournal
from orchestrator.errors import ConfigError


async def streamed():
    async for _ in agent.stream("Mars"):
        pass


async def stored():
    async with SqliteJournal("journal.db"):
        pass


async def served():
    async with LocalEngine(agent):
        pass


async def in_a_thread():
    return (await trio.to_thread.run_sync(agent.run_sync, "Mars")).output


for work in (lambda: agent.run("Mars"), streamed, stored, served):
    try:
        trio.run(work)
    except ConfigError as error:
        print(error)
print(trio.run(in_a_thread))
"""


@pytest.mark.campaign
def test_under_trio_one_sentence_names_the_way_out_which_works(host: Host) -> None:
    host.write("host.py", TRIO)
    *sentences, output = host.run("-W", "error", "host.py").splitlines()
    assert len(sentences) == 4
    assert len(set(sentences)) == 1
    assert "under trio call `await trio.to_thread.run_sync(agent.run_sync, prompt)`" in sentences[0]
    assert output == "Mars: 2"


# ---- web frameworks ----

STARLETTE = """
import contextlib, os
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from hosted import agent
from orchestrator import LocalEngine


async def ask(request):
    result = await agent.run(request.query_params["prompt"])
    return JSONResponse({"output": result.output, "pid": os.getpid(), "parent": PARENT})


async def queued(request):
    handle = await request.app.state.engine.submit(request.query_params["prompt"])
    return JSONResponse({"output": (await handle).output})


@contextlib.asynccontextmanager
async def lifespan(app):
    async with LocalEngine(agent) as app.state.engine:
        yield


PARENT = os.getpid()  # of the process that imported the application
app = Starlette(routes=[Route("/ask", ask), Route("/queued", queued)], lifespan=lifespan)
"""


@pytest.mark.campaign
@pytest.mark.canary
def test_starlette_awaits_a_run_and_an_engine_of_its_lifespan(plain_host: Host) -> None:
    plain_host.write("host.py", STARLETTE)
    port = str(free_port())
    with ended(plain_host.start("-m", "uvicorn", "host:app", "--port", port)):
        client = serves(plain_host, port)
        assert client.get("/queued?prompt=Mars") == {"output": "Mars: 2"}


@pytest.mark.campaign
def test_gunicorn_forks_workers_from_a_process_that_has_made_the_agent(plain_host: Host) -> None:
    plain_host.write("host.py", STARLETTE)
    port = f"127.0.0.1:{free_port()}"
    worker = ("-k", "uvicorn_worker.UvicornWorker", "-w", "2")
    with ended(plain_host.start("-m", "gunicorn", "--preload", *worker, "host:app", "-b", port)):
        client = serves(plain_host, port)
        found: set[int] = set()

        def both() -> bool:
            said = client.get("/ask?prompt=Mars")
            assert said["output"] == "Mars: 2"
            assert said["pid"] != said["parent"]
            found.add(said["pid"])
            return len(found) == 2

        client.until(both)
        assert client.get("/queued?prompt=Mars") == {"output": "Mars: 2"}


DJANGO = """
import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import JsonResponse
from django.urls import path
from hosted import agent

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="test")
django.setup()


async def ask(request):
    return JsonResponse({"output": (await agent.run(request.GET["prompt"])).output})


def wait(request):
    return JsonResponse({"output": agent.run_sync(request.GET["prompt"]).output})


urlpatterns = [path("ask", ask), path("wait", wait)]
app = get_asgi_application()
"""


@pytest.mark.campaign
def test_django_awaits_a_run_in_an_async_view_and_waits_for_one_in_a_sync_view(host: Host) -> None:
    host.write("host.py", DJANGO)
    port = str(free_port())
    with ended(host.start("-m", "uvicorn", "host:app", "--port", port)):
        client = serves(host, port)
        assert client.get("/wait?prompt=Mars") == {"output": "Mars: 2"}


# ---- test runners ----

PYTEST = """
import asyncio
import pytest
from hosted import agent, answers
from orchestrator import LLM_LOOP, Agent
from orchestrator.testing import FunctionLLM

pytestmark = {marks}


@pytest.fixture
async def streamed():
    async with agent.stream("Mars") as stream:
        return [type(event).__name__ async for event in stream]


async def test_a_run_is_awaited():
    assert (await agent.run("Mars")).output == "Mars: 2"


async def test_an_async_fixture_reads_a_stream(streamed):
    assert streamed[-1] == "RunFinished"


async def test_runs_at_once(graph_coverage):
    observed = Agent(FunctionLLM(lambda request: "hi"), observers=[graph_coverage(LLM_LOOP)])
    results = await asyncio.gather(*(observed.run("go") for _ in range(10)))
    assert [result.output for result in results] == ["hi"] * 10
"""


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("marks", "options"),
    [
        ("pytest.mark.anyio", ["-p", "no:asyncio", "-p", "anyio"]),
        (
            "[]",
            [
                "-p",
                "no:anyio",
                "-o",
                "asyncio_mode=auto",
                "-o",
                "asyncio_default_fixture_loop_scope=function",
            ],
        ),
    ],
    ids=["anyio", "pytest-asyncio"],
)
def test_async_tests_await_runs(host: Host, marks: str, options: list[str]) -> None:
    host.write(
        "conftest.py", "import pytest\n\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    host.write("test_agent.py", PYTEST.format(marks=marks))
    said = host.run("-m", "pytest", "-q", "-W", "error", "--graph-coverage", *options, "test_agent.py")
    assert "3 passed" in said
    assert "llm_loop" in said


# ---- notebooks ----

NOTEBOOK = """
import nbformat
from nbclient import NotebookClient

cells = [
    "from hosted import agent",
    "result = await agent.run('Mars')\\nresult.output",
    "try:\\n    agent.run_sync('Mars')\\nexcept Exception as error:\\n    print(error)",
    "names = [type(event).__name__ async for event in agent.stream('Mars')]\\nnames[-1]",
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
NotebookClient(notebook, timeout=90, kernel_name="python3").execute()
for cell in notebook.cells:
    for output in cell.outputs:
        print(output.get("text") or output["data"]["text/plain"])
"""


@pytest.mark.campaign
def test_a_notebook_awaits_runs(host: Host) -> None:
    host.write("host.py", NOTEBOOK)
    output, refusal, last = [line for line in host.run("host.py").splitlines() if line][-3:]
    assert (output, last) == ("'Mars: 2'", "'RunFinished'")
    assert "use `await agent.run(...)` there" in refusal


# ---- task queues ----

CELERY = """
import asyncio, os, pathlib, signal
from celery import Celery
from hosted import answers
from orchestrator import Agent, SqliteJournal, tool
from orchestrator.errors import RunExists
from orchestrator.testing import FunctionLLM

app = Celery("host", broker="filesystem://", backend="file://results")
folders = {"data_folder_in": "broker", "data_folder_out": "broker", "control_folder": "control"}
app.conf.update(broker_transport_options=folders, worker_prefetch_multiplier=1)


@tool(effect="idempotent")
def moons(planet: str) -> str:
    '''Count the moons of a planet.'''
    with open(f"calls-{planet}", "a") as calls:
        calls.write(f"{os.getpid()}\\n")
    if planet == "Pluto" and len(pathlib.Path("calls-Pluto").read_text().split()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{planet}: 2"


agent = Agent(FunctionLLM(answers), name="host", tools=[moons], journal=SqliteJournal("journal.db"), observers=())


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def answer(self, prompt):
    try:
        result = agent.run_sync(prompt, run_id=self.request.id)
    except RunExists:  # the worker died, and the task is delivered again
        result = asyncio.run(agent.resume(self.request.id))
    return result.output
"""

CALLER = """
import json
from host import answer

waiting = [answer.apply_async((planet,), task_id=planet) for planet in ("Mars", "Venus", "Pluto")]
print(json.dumps([one.get(timeout=90, interval=0.05) for one in waiting]))
"""


@pytest.mark.campaign
def test_a_celery_task_is_a_run_that_is_resumed_when_its_worker_is_killed(host: Host) -> None:
    host.write("host.py", CELERY)
    host.write("caller.py", CALLER)
    for folder in ("broker", "control", "results"):
        (host.folder / folder).mkdir()
    worker = (
        "-m",
        "celery",
        "-A",
        "host",
        "worker",
        "--pool",
        "prefork",
        "--concurrency",
        "2",
        "-l",
        "warning",
    )
    with ended(host.start(*worker)):
        outputs = json.loads(host.run("caller.py").splitlines()[-1])
    assert outputs == ["Mars: 2", "Venus: 2", "Pluto: 2"]
    calls = (host.folder / "calls-Pluto").read_text().split()
    assert len(calls) == len(set(calls)) == 2  # in two processes
