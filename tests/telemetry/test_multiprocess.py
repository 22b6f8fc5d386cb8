"""Two gunicorn workers behind one page: their sums, their live gauges, and a worker that is killed and replaced."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import SqliteJournal
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.ops.pack import pack, yaml
from orchestrator.ops.rule import smoke
from tests.dashboards.monitoring import ROOT, Process, fetch, reachable, until
from tests.ports import free_port

pytestmark = [pytest.mark.campaign, pytest.mark.system("prometheus")]

APP = """
import os
import threading
from orchestrator import Agent, SqliteJournal
from orchestrator.telemetry import Metrics, TransitionLog, wsgi_app
from orchestrator.testing import FunctionLLM

async def answer(request):
    if request.messages[-1].text == "hang":
        import asyncio
        await asyncio.sleep(3600)
    return "Done."

metrics, agents, making = Metrics(), [], threading.Lock()
pages = wsgi_app()

def agent():
    with making:
        if not agents:  # after the fork: each worker opens the journal, and has a log
            journal = SqliteJournal("worker.db")
            log = TransitionLog(open(f"worker-{os.getpid()}.log", "ab", buffering=0))
            released = open("version").read()
            options = {"name": "support", "journal": journal, "observers": [log, metrics], "version": released}
            agents.append(Agent(FunctionLLM(answer, model="m"), **options))
        return agents[0]

def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path in ("/go", "/hang"):
        agent().run_sync(path[1:])
        start_response("200 OK", [])
        return [str(os.getpid()).encode()]
    return pages(environ, start_response)
"""
CONF = """
from prometheus_client import multiprocess

def child_exit(server, worker):
    multiprocess.mark_process_dead(worker.pid)
"""


class Served:
    """gunicorn with two workers, and a Prometheus that scrapes it with our rules.

    A scrape that takes more than a second fails, and its figures are gone until the next one: wait for each figure.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.monitor = folder, free_port(), free_port()
        self.hanging: socket.socket | None = None
        (folder / "multiproc").mkdir()
        (folder / "host_app.py").write_text(APP)
        (folder / "conf.py").write_text(CONF)
        (folder / "version").write_text("1")
        made = pack([LLM_LOOP], profile=smoke(30))
        for name in ("rules.yml", "alerts.yml"):
            (folder / name).write_text(made[f"prometheus/{name}"])
        scrape = {"job_name": "orchestrator", "static_configs": [{"targets": [f"127.0.0.1:{self.port}"]}]}
        config: dict[str, Any] = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml", "alerts.yml"],
            "scrape_configs": [scrape],
        }
        (folder / "prometheus.yml").write_text(yaml(config))
        path = os.pathsep.join((str(folder), str(ROOT)))
        shared = {"PROMETHEUS_MULTIPROC_DIR": str(folder / "multiproc"), "PYTHONPATH": path}
        serve = [
            "-m",
            "gunicorn",
            "--chdir",
            str(folder),
            "-w",
            "2",
            "--threads",
            "4",
            "--preload",
            "-c",
            str(folder / "conf.py"),
        ]
        bind = ["-b", f"127.0.0.1:{self.port}", "host_app:app"]
        self.processes = [
            Process("gunicorn", [sys.executable, *serve, *bind], folder, shared),
            Process(
                "prometheus",
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{self.monitor}",
                    "--log.level=warn",
                ],
                folder,
            ),
        ]

    def start(self) -> None:
        for process in self.processes:
            process.start()
        for address in (f"127.0.0.1:{self.port}/healthz", f"127.0.0.1:{self.monitor}/-/ready"):
            until(lambda address=address: reachable(f"http://{address}"), 60, address)  # type: ignore[misc]

    def stop(self) -> None:
        if self.hanging is not None:
            self.hanging.close()
        for process in reversed(self.processes):
            process.stop()

    def go(self, runs: int) -> set[int]:
        """Let the workers execute runs, and return their process ids."""
        found = set()
        for _ in range(runs):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/go", timeout=60) as answer:
                found.add(int(answer.read()))
        return found

    def hang(self) -> None:
        """Start a run that does not end."""
        self.hanging = socket.create_connection(("127.0.0.1", self.port))
        self.hanging.sendall(b"GET /hang HTTP/1.0\r\n\r\n")

    def workers(self) -> set[int]:
        """Return the process ids of the workers, which have files; so has the process that forked them."""
        files = (self.folder / "multiproc").glob("gauge_livesum_*.db")
        found = {int(file.stem.rpartition("_")[2]) for file in files}
        assert self.processes[0].running is not None
        return found - {self.processes[0].running.pid}

    async def stored(self) -> int:
        """Return the number of transitions in the journal of the workers."""
        found = 0
        async with SqliteJournal(self.folder / "worker.db") as journal:
            async for head in journal.runs():
                records = await journal.load(head.run_id)
                found += sum(record.kind == "transition" for record in records)
        return found

    def value(self, query: str) -> float | None:
        """Return the only value of a query; None without one."""
        words = urllib.parse.urlencode({"query": query, "time": time.time()})
        found = fetch(f"http://127.0.0.1:{self.monitor}/api/v1/query?{words}")["data"]["result"]
        return float(found[0]["value"][1]) if len(found) == 1 else None

    def versions(self) -> set[str]:
        """Return the versions of the agent that the page has."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            return set(
                re.findall(r'orchestrator_agent_info\{.*version="(\w+)"\} 1\.0', answer.read().decode())
            )

    def broken_rules(self) -> list[str]:
        """Return the rules whose last evaluation failed, for example by a join with two partners."""
        groups = fetch(f"http://127.0.0.1:{self.monitor}/api/v1/rules")["data"]["groups"]
        return [rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"]

    def firing(self) -> set[str]:
        alerts = fetch(f"http://127.0.0.1:{self.monitor}/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def _in_journal(status: str) -> str:
    return f'sum(max by (journal, machine, agent, reason) (orchestrator_journal_runs{{status="{status}"}}))'


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def test_journals_log_lines_and_metrics_of_all_workers_are_one_number(served: Served) -> None:
    done = 'sum(orchestrator_runs_completed_total{agent="support"})'
    taken = 'sum(orchestrator_transitions_total{agent="support", machine="llm_loop"})'
    for worker in served.go(12):
        os.kill(worker, signal.SIGKILL)
    more = 0
    while more < 12:
        more += len(served.go(1))
    until(lambda: served.value(done) == 24, 60, "the runs of dead and new workers")
    lines = [
        json.loads(line)
        for file in served.folder.glob("worker-*.log")
        for line in file.read_text().splitlines()
    ]
    logged = [line for line in lines if line["msg"] == "fsm.transition"]
    assert {line["agent"] for line in logged} == {"support"}
    assert len(logged) == asyncio.run(served.stored())
    until(lambda: served.value(taken) == len(logged), 60, "the transitions of dead and new workers")


def test_the_page_of_two_workers_is_right_while_one_is_killed_and_replaced(served: Served) -> None:
    done = 'sum(orchestrator_runs_completed_total{agent="support", outcome="completed"})'
    active = 'sum(orchestrator_runs_active{agent="support", state="await_llm"})'
    served.go(20)
    until(lambda: served.value(done) == 20, 60, "the runs of both workers")
    until(lambda: served.value("orchestrator_build_info") == 1, 60, "the version")
    limit = 'orchestrator_state_timeout_seconds{state="await_llm"}'
    until(lambda: served.value(limit) is not None, 60, "the limit of a state")
    served.hang()
    until(lambda: served.value(active) == 1, 60, "the run that is active")
    until(
        lambda: served.value(_in_journal("running")) == 1, 60, "the same run in the journal of both workers"
    )
    for worker in served.workers():  # the one that has it, too
        os.kill(worker, signal.SIGKILL)
    until(lambda: not served.value(active), 60, "the end of the gauges of dead workers")
    again = 0
    while again < 20:
        again += len(served.go(1))
    until(lambda: served.value(done) == 40, 60, "the counts of dead and new workers")
    until(lambda: served.value(_in_journal("orphaned")) == 1, 60, "the run of the dead worker")
    until(lambda: not served.value(_in_journal("running")), 60, "no run of a dead worker as running")
    identities = "count(count_over_time(orchestrator_target_info[10m]))"
    assert served.value(identities) == 1  # the workers of one folder are one target, with new workers, too
    assert served.value("abs(orchestrator_process_time_seconds - timestamp(up))") is not None
    assert (
        served.firing()
        & {
            "OrchestratorMetricsAbsent",
            "OrchestratorEngineStalled",
            "OrchestratorRunStuck",
            "OrchestratorRunOverdue",
            "OrchestratorTelemetryDegraded",
        }
        == set()
    )


ANSWERED = "machine_agent_version:orchestrator_runs_answered:rate1h"


def test_workers_of_two_versions_have_a_row_each_until_the_older_ones_are_gone(served: Served) -> None:
    old: set[int] = set()
    while len(old) < 2:
        old |= served.go(1)
    until(lambda: served.go(1) and served.value(f"{ANSWERED} > 0"), 60, "the runs of version 1")
    assert served.versions() == {"1"}
    (served.folder / "version").write_text("2")
    first, second = old
    os.kill(first, signal.SIGTERM)
    while not served.go(1) - old:  # its successor has the new version
        pass
    until(lambda: served.versions() == {"1", "2"}, 60, "both versions on one page")
    until(lambda: served.value(f"absent({ANSWERED})"), 60, "no figure for either of them")
    assert served.broken_rules() == []
    os.kill(second, signal.SIGTERM)
    new: set[int] = set()
    while len(new) < 2:
        new |= served.go(1) - old
    until(lambda: served.versions() == {"2"}, 60, "the new version alone")
    until(
        lambda: served.go(1) and served.value(f'{ANSWERED}{{version="2"}} > 0'), 60, "the runs of version 2"
    )
    assert served.broken_rules() == []
