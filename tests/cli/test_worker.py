"""`orchestrator worker` and `orchestrator submit`: runs of a database, left and carried by commands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE = """
from orchestrator import Orchestrator, Pipeline
from orchestrator.machines.pipeline.model import Evaluation
from orchestrator.providers.scripted import FunctionLLM

def answer(request):
    return f"so {request.messages[-1].text}"

async def plan(request):
    return {"steps": [request.spec]}

async def check(request):
    return []

async def build(request):
    return f"built {request.spec}"

async def judge(request):
    return Evaluation(9.0)

def loop(journal):
    return Orchestrator(FunctionLLM(answer), journal=journal, observers=())

def pipeline(journal):
    return Pipeline(plan, check, build, judge, journal=journal, observers=())

def nothing(journal):
    return "no agent"
"""


class Commands:
    """Commands with one database, and modules of their own."""

    def __init__(self, dsn: str, folder: Path) -> None:
        (folder / "mine.py").write_text(MODULE)
        self.folder = folder
        self._environment = os.environ | {
            "ORCHESTRATOR_JOURNAL": dsn,
            "PYTHONPATH": str(folder),
            "COLUMNS": "200",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "orchestrator", *arguments],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextmanager
    def worker(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Start a worker; it has said that it works when the block begins."""
        with subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "worker", *arguments],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def ended(self, run: str) -> Callable[[], bool]:
        return lambda: '"status": "ended"' in self.run("runs", "show", run, "--json").stdout


@pytest.fixture
def commands(database: str, tmp_path: Path) -> Commands:
    return Commands(database, tmp_path)


def until(ready: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < ends, "it never came to that"
        time.sleep(0.05)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_what_is_submitted_is_carried_by_a_worker_which_stops_at_a_signal(commands: Commands) -> None:
    left = commands.run("submit", "x", "--run-id", "first", "--tenant", "acme")
    assert (left.returncode, left.stdout) == (0, "first\n"), left.stderr
    assert "a worker finds it there by its next sweep" in left.stderr, "there were no workers ever"
    with commands.worker("--model", "python:mine:answer", "--slots", "2", "--metrics-port", "0") as process:
        said = line(process)
        assert re.match(
            r"worker \S+ carries llm_loop of postgresql://owner@\S+, 2 slots, metrics at http://", said
        )
        assert "owner:" not in said, "no password"
        until(commands.ended("first"))
        then = commands.run("submit", "y", "--run-id", "second", "--json")
        assert json.loads(then.stdout) == {"run_id": "second", "placed": True}
        until(commands.ended("second"))
        url = said.strip().rpartition(" ")[2].removesuffix("/metrics") + "/metrics"
        with urllib.request.urlopen(url, timeout=10) as page:  # noqa: S310 - our own server
            series = page.read().decode()
        assert (
            'orchestrator_runs_completed_total{machine="llm_loop",outcome="completed",reason="none"} 2.0'
            in series
        )
        process.send_signal(signal.SIGTERM)
        assert (process.wait(60), "has stopped" in line(process)) == (0, True)
    shown = json.loads(commands.run("runs", "show", "second", "--json").stdout)
    assert shown["outcome"] == "completed"


def test_a_worker_carries_the_agents_of_a_module_a_pipeline_among_them(commands: Commands) -> None:
    with commands.worker("--agent", "mine:loop", "--agent", "build=mine:pipeline", "--name", "w7") as process:
        assert "worker w7 carries llm_loop, pipeline of" in line(process)
        left = commands.run("submit", "a shed", "--agent", "mine:pipeline", "--run-id", "p1")
        assert left.returncode == 0, left.stderr
        until(commands.ended("p1"))
    assert json.loads(commands.run("runs", "show", "p1", "--json").stdout)["graph"] == "pipeline"


def test_with_procrastinate_it_is_the_same(commands: Commands) -> None:
    with commands.worker("--agent", "mine:loop", "--dispatcher", "procrastinate") as process:
        assert "carries llm_loop of" in line(process)
        left = commands.run("submit", "x", "--run-id", "p1", "--dispatcher", "procrastinate", "--json")
        assert json.loads(left.stdout) == {"run_id": "p1", "placed": True}
        until(commands.ended("p1"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("worker", "--model", "python:mine:answer", "--journal", "a.db"),
            "a.db is a file: give --dsn postgresql://",
        ),
        (("submit", "x", "--journal", "a.db"), "a.db is a file: give --dsn postgresql://"),
        (("worker", "--agent", "mine:none"), "mine has no 'none'"),
        (("worker", "--agent", "mine:MODULE"), "no function"),
        (("worker", "--agent", "mine:nothing"), "an engine runs an Orchestrator, a Pipeline or an Rlm"),
        (("worker", "--agent", "mine:loop", "--dispatcher", "celery"), "it must be dbos or procrastinate"),
        (("worker", "--agent", "mine:loop", "--rate", "often"), "not of the form N/SECONDS"),
        (("worker", "--agent", "mine:loop", "--concurrency", "-1"), "concurrency is -1"),
        (("worker", "--agent", "mine:loop", "--slots", "0"), "slots is 0"),
        (
            ("worker", "--agent", "mine:loop", "--dispatcher", "procrastinate", "--concurrency", "2"),
            "no limits over all workers",
        ),
        (("submit", "x", "--tenant", "a\nb"), "tenant is"),
        (("submit", "x", "--run-id", "-"), "is none: printable characters"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    commands: Commands, arguments: tuple[str, ...], said: str
) -> None:
    done = commands.run(*arguments)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (commands.folder / "a.db").exists()


def test_a_server_that_is_not_there_is_said_without_its_password(commands: Commands) -> None:
    done = commands.run("submit", "x", "--dsn", "postgresql://me:secret-word@127.0.0.1:9/nowhere")
    assert done.returncode != 0
    assert "secret-word" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
