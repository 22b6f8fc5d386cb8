"""`orchestrator worker` and `orchestrator submit`: runs of a database, left and carried by commands."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines import engine_directory
from tests.postgres import Cluster

Cli = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]

MINE = """
from orchestrator import Agent, RalphOrchestrator
from orchestrator.approval import Approval
from orchestrator.pipeline import Pipeline
from orchestrator.rlm import Rlm
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
    return Agent(FunctionLLM(answer), journal=journal, observers=())

def pipeline(journal):
    return Pipeline(plan, check, build, judge, journal=journal, observers=())

def read(request):
    return "```repl\\nfound = context.split()[1]\\n```\\nFINAL_VAR(found)"

def reader(journal):
    return Rlm(FunctionLLM(read), journal=journal, observers=())

def nothing(journal):
    return "no agent"

def elsewhere(journal):
    return Agent(FunctionLLM(answer), observers=())

def broken(journal):
    raise OSError("no key\\nfor the vendor")

def approvals(journal):
    return Approval(".")

def ralph(journal):
    return RalphOrchestrator(plan, plan, plan, observers=())
"""


@pytest.fixture(autouse=True)
def mine(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)


def until(ready: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < ends, "it never came to that"
        time.sleep(0.05)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = process.stdout.readline()
    if not said and process.stderr is not None:
        raise AssertionError(f"it said nothing but: {process.stderr.read()}")
    return said


def ended(cli: Cli, run: str, *at: str) -> Callable[[], bool]:
    return lambda: '"status": "ended"' in cli("runs", "show", run, "--json", *at).out


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as page:  # noqa: S310 - our own server
        return str(page.read().decode())


@pytest.mark.canary
def test_what_is_submitted_is_carried_by_a_worker_which_stops_at_a_signal(
    cli: Cli, start: Start, database: str
) -> None:
    at = ("--dsn", database)
    left = cli("submit", "x", "--run-id", "first", "--tenant", "acme", *at)
    assert (left.code, left.out) == (0, "first\n"), left.err
    assert "a worker finds it there by its next sweep" in left.err, "there were no workers ever"
    process = start(
        "worker", "--model", "python:mine:answer", "--slots", "2", "--metrics-port", "0", "--name", "w7", *at
    )
    said = line(process)
    assert re.match(
        r"worker w7 carries llm_loop of postgresql://owner@\S+, 2 slots, metrics at http://", said
    )
    assert "owner:" not in said, "no password"
    until(ended(cli, "first", *at))
    then = cli("submit", "y", "--run-id", "second", "--json", *at)
    assert json.loads(then.out) == {"run_id": "second", "placed": True}
    until(ended(cli, "second", *at))
    assert "w7" in cli("operate", "status", *at).out
    url = said.strip().rpartition(" ")[2].removesuffix("/metrics") + "/metrics"
    labels = 'agent="_none",machine="llm_loop",outcome="completed",reason="none"'
    until(lambda: f"orchestrator_runs_completed_total{{{labels}}} 2.0" in scraped(url))
    series = scraped(url)
    waited = re.search(r'run_queue_wait_seconds_sum\{agent="_none",machine="llm_loop"\} (\S+)', series)
    assert waited is not None
    assert float(waited[1]) > 0.1, "since the first was left there, before there was a worker"
    process.send_signal(signal.SIGTERM)
    assert (process.wait(60), "has stopped" in line(process)) == (0, True)
    assert json.loads(cli("runs", "show", "second", "--json", *at).out)["outcome"] == "completed"


def test_a_worker_carries_the_agents_of_a_module_a_pipeline_among_them_and_drains_when_it_is_told(
    cli: Cli, start: Start, database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_directory, "ANSWERS_WITHIN", 30.0)
    at, placed_by = ("--dsn", database), ("--dispatcher", "procrastinate")
    agents = ("--agent", "mine:loop", "--agent", "build=mine:pipeline", "--agent", "mine:reader")
    process = start("worker", *agents, *placed_by, *at)
    assert "carries code_mode, llm_loop, pipeline of" in line(process)
    (folder / "long.txt").write_text("here Santiago fishes")
    about = ("--agent", "mine:reader", "--about", "long.txt")
    assert cli("submit", "Who?", "--run-id", "c1", *about, *placed_by, *at).code == 0
    left = cli("submit", "a shed", "--agent", "mine:pipeline", "--run-id", "p1", "--json", *placed_by, *at)
    assert json.loads(left.out) == {"run_id": "p1", "placed": True}, left.err
    assert cli("submit", "x", "--run-id", "l1", *placed_by, *at).code == 0
    until(ended(cli, "p1", *at))
    until(ended(cli, "l1", *at))
    until(ended(cli, "c1", *at))
    assert json.loads(cli("runs", "show", "c1", "--json", *at).out)["outcome"] == "completed"
    assert json.loads(cli("runs", "show", "p1", "--json", *at).out)["graph"] == "pipeline"
    drained = cli("operate", "drain", *at)
    assert (drained.code, process.wait(60)) == (0, 0), drained.err


BAD = [
    (("worker", "--agent", "mine:none"), "mine has no 'none'"),
    (("worker", "--agent", "mine:MODULE"), "mine has no 'MODULE'"),
    (("worker", "--agent", "mine:__doc__"), "no function"),
    (
        ("worker", "--agent", "mine:nothing"),
        "an engine runs an Agent, a Pipeline, a Ralph, an Rlm or an Approval",
    ),
    (("worker", "--agent", "mine:answer"), "cannot be made: AttributeError"),
    (("worker", "--agent", "mine:broken"), "OSError: no key"),
    (("worker", "--agent", "mine:elsewhere"), "many machines share"),
    (("worker", "--agent", "mine:loop", "--agent", "mine:loop"), "two agents are called 'loop'"),
    (
        ("worker", "--agent", "mine:approvals"),
        "bound to the directory of its project",
    ),
    (
        ("worker", "--agent", "mine:ralph"),
        "bound to the directory of its session",
    ),
    (
        ("worker", "--agent", "mine:loop", "--limit", "max_iterations=3"),
        "limits: these are for an agent of --model",
    ),
    (
        ("worker", "--agent", "mine:loop", "--agent", "b=mine:loop"),
        "two agents of graph 'llm_loop' have no name",
    ),
    (("worker", "--agent", "mine:loop", "--dispatcher", "celery"), "it must be dbos or procrastinate"),
    (("worker", "--agent", "mine:loop", "--rate", "often"), "not of the form N/SECONDS"),
    (("worker", "--agent", "mine:loop", "--rate", "5/0"), "period is 0.0"),
    (("worker", "--agent", "mine:loop", "--concurrency", "-1"), "concurrency is -1"),
    (("worker", "--agent", "mine:loop", "--slots", "0"), "slots is 0"),
    (("worker", "--agent", "mine:loop", "--grace", "-1"), "grace is -1"),
    (("worker", "--agent", "mine:loop", "--name", "local"), "'local' is not allowed as a worker name"),
    (
        ("worker", "--agent", "mine:loop", "--dispatcher", "procrastinate", "--concurrency", "2"),
        "no limits across workers",
    ),
    (("submit", "x", "--tenant", "a\nb"), "tenant is"),
    (("submit", "x", "--run-id", "-"), "which no route or command line can name"),
    (("submit", "x", "--agent", "mine:nothing"), "leaves no runs"),
    (("submit", "x", "--agent", "mine:broken"), "OSError: no key"),
    (("submit", "x", "--agent", "mine:elsewhere"), "another journal"),
    (
        ("submit", "x", "--agent", "mine:ralph"),
        "bound to the directory of its session",
    ),
    (("submit", "x", "--about", "mine.py"), "--about is for an agent that is an Rlm"),
    (
        ("submit", "x", "--about", "mine.py", "--agent", "mine:loop"),
        "is of the class Agent; --about is for an Rlm",
    ),
    (("submit", "x", "--limit", "max_iterations=3", "--agent", "mine:loop"), "those of agent 'mine:loop'"),
    (("submit", "x", "--conversation", "c", "--agent", "mine:pipeline"), "a pipeline has no conversations"),
    (("submit", "x", "--dispatcher", "celery"), "it must be dbos or procrastinate"),
]


def test_bad_input_is_one_sentence_and_exit_code_2(
    cli: Cli, database: str, one_sentence: Callable[[Any], str]
) -> None:
    for arguments, said in BAD:
        done = cli(*arguments, "--dsn", database)
        assert (done.code, said in one_sentence(done)) == (2, True), (arguments, done)
    assert json.loads(cli("runs", "list", "--json", "--dsn", database).out or "[]") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--agent", "mine:none"), "mine has no 'none'"),
        (("--agent", "mine:__doc__"), "no function"),
        (("--model", "python:mine:answer", "--slots", "-1"), "slots is -1"),
        (("--model", "python:mine:answer", "--grace", "nan"), "grace is nan"),
        (("--model", "python:mine:answer", "--limit", "max_iterations=-1"), "max_iterations is -1"),
    ],
)
def test_bad_input_is_said_before_a_server_is_waited_for(
    cli: Cli, one_sentence: Callable[[Any], str], options: tuple[str, ...], said: str
) -> None:
    done = cli("worker", *options, "--dsn", "postgresql://me@127.0.0.1:9/nowhere")
    assert (done.code, said in one_sentence(done)) == (2, True), done


@pytest.mark.parametrize("command", [("worker", "--model", "python:mine:answer"), ("submit", "x")])
def test_a_file_is_no_journal_that_machines_share(
    cli: Cli, folder: Path, command: tuple[str, ...], one_sentence: Callable[[Any], str]
) -> None:
    told = one_sentence(cli(*command, "--journal", "a.db"))
    assert "a.db is a file: give --dsn postgresql://" in told
    assert not (folder / "a.db").exists()


def test_an_address_that_is_misread_is_refused_before_a_part_of_its_password_is_shown(
    cli: Cli, folder: Path, one_sentence: Callable[[Any], str]
) -> None:
    for address, said in (
        ("host=h dbname=d password=hunter2", "DBOS needs the address of a database: postgresql://"),
        ("postgresql://me:one@hunter2@h/d", "write an @ in a user's name or a password as %40"),
        ("postgresql://me:one/hunter2@h/d", "and a / as %2F"),
        ("jdbc:postgresql://me:hunter2@h/d", "not jdbc:postgresql://"),
    ):
        refused = cli("submit", "x", "--dsn", address)
        assert (refused.code, said in one_sentence(refused)) == (2, True), refused
        assert "hunter2" not in refused.err
    assert not [one for one in folder.rglob("*") if "hunter2" in one.name]


def test_a_worker_says_that_it_waits_for_a_server_that_does_not_answer(start: Start) -> None:
    process = start(
        "worker", "--agent", "mine:loop", "--dsn", "postgresql://me:secret-word@127.0.0.1:9/nowhere"
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    assert "waiting for postgresql://me@127.0.0.1:9/nowhere, which does not answer yet" in said
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    assert "Traceback" not in process.stderr.read()


@pytest.mark.campaign
def test_a_server_that_is_not_there_is_bad_input_to_every_command_and_said_without_its_password(
    cli: Cli, one_sentence: Callable[[Any], str], postgres: Cluster
) -> None:
    wrong = postgres.dsn().replace(postgres.password, "secret-word")
    away = "postgresql://me:secret-word@127.0.0.1:9/nowhere"
    looking, beginning = (
        ("runs", "list", "--journal"),
        ("run", "x", "--model", "python:mine:answer", "--journal"),
    )
    submitting, working = ("submit", "x", "--dsn"), ("worker", "--agent", "mine:loop", "--dsn")
    for *command, address in [
        *((*one, where) for one in (looking, beginning, submitting) for where in (away, wrong)),
        (*working, wrong),  # it waits for one that is away
    ]:
        done = cli(*command, address)
        assert done.code == 2, (command, done)
        assert "secret-word" not in one_sentence(done)
