"""A process with a parked and a running run is killed: both stay visible, and count once."""

from __future__ import annotations

import os
import signal
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.ops.pack import pack, yaml
from orchestrator.ops.rule import smoke
from tests.dashboards.monitoring import ROOT, Process, fetch, reachable, text_of, until
from tests.ports import free_port

HOST = """
import asyncio, sys
from pathlib import Path
from orchestrator import Agent, LocalEngine, SqliteJournal, ToolCall, tool
from orchestrator.telemetry import Metrics, serve_metrics
from orchestrator.testing import FunctionLLM
from orchestrator.providers.scripted import call

@tool(effect="irreversible", approval=True)
async def pay(amount: int) -> str:
    "Pay an amount."
    return f"paid {amount}"

async def answer(request):
    if request.messages[-1].text == "hang":
        await asyncio.sleep(3600)
    return call("pay", amount=1)

async def main():
    metrics = Metrics()
    async with SqliteJournal(Path(__file__).with_name("runs.db")) as journal:
        agent = Agent(FunctionLLM(answer, model="m"), name="support", tools=[pay], journal=journal, observers=[metrics])
        async with LocalEngine(agent, recover="list") as engine:
            handles = [await engine.submit(prompt) for prompt in sys.argv[2:]]
            with serve_metrics(port=int(sys.argv[1])):
                await asyncio.sleep(3600)

asyncio.run(main())
"""
RUNS = "max by (journal, machine, agent, status, reason) (orchestrator_journal_runs)"


class Site:
    """Processes with one journal, and a Prometheus for all of them.

    A scrape that takes more than a second fails, and its figures are gone until the next one: wait for each figure.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {name: free_port() for name in ("host", "beside", "watch", "prometheus")}
        (folder / "host.py").write_text(HOST)
        self.processes: dict[str, Process] = {}

    def start_host(self, name: str, *prompts: str) -> None:
        self._start(name, [sys.executable, str(self.folder / "host.py"), str(self.ports[name]), *prompts])
        self._wait(name, "/metrics")

    def start_watch(self) -> None:
        watch = ["metrics", "serve", "--every", "1", "--journal", str(self.folder / "runs.db")]
        self._start(
            "watch", [sys.executable, "-m", "orchestrator", *watch, "--port", str(self.ports["watch"])]
        )
        self._wait("watch", "/metrics")

    def start_prometheus(self) -> None:
        made = pack([LLM_LOOP], profile=smoke(150))
        for name in ("rules.yml", "alerts.yml"):
            (self.folder / name).write_text(made[f"prometheus/{name}"])
        jobs = {"orchestrator": ("host", "beside"), "orchestrator-journal": ("watch",)}
        config: dict[str, Any] = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml", "alerts.yml"],
            "scrape_configs": [
                {
                    "job_name": job,
                    "static_configs": [{"targets": [f"127.0.0.1:{self.ports[name]}" for name in names]}],
                }
                for job, names in jobs.items()
            ],
        }
        (self.folder / "prometheus.yml").write_text(yaml(config))
        options = {
            "config.file": self.folder / "prometheus.yml",
            "storage.tsdb.path": self.folder / "tsdb",
            "web.listen-address": f"127.0.0.1:{self.ports['prometheus']}",
            "log.level": "warn",
        }
        self._start("prometheus", ["prometheus", *(f"--{name}={value}" for name, value in options.items())])
        self._wait("prometheus", "/-/ready")

    def _start(self, name: str, command: list[str]) -> None:
        found = Process(name, command, self.folder, {"PYTHONPATH": str(ROOT)})
        found.start()
        self.processes[name] = found

    def _wait(self, name: str, path: str) -> None:
        until(lambda: reachable(f"http://127.0.0.1:{self.ports[name]}{path}"), 60, f"{name} answers")

    def kill(self, name: str) -> None:
        self.processes.pop(name).stop(signal.SIGKILL)

    def stop(self) -> None:
        for process in self.processes.values():
            process.stop()

    def runs(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the runs of the journal as one process serves them: its identity, status and reason."""
        text = text_of(f"http://127.0.0.1:{self.ports[name]}/metrics")
        return {
            tuple(sample.labels[label] for label in ("journal", "agent", "status", "reason")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "orchestrator_journal_runs"
        }

    def statuses(self, name: str) -> dict[str, float]:
        return {labels[2]: value for labels, value in self.runs(name).items()}

    def query(self, expression: str) -> dict[tuple[str, ...], float]:
        """Return the values of a query by status and instance."""
        words = urllib.parse.urlencode({"query": expression, "time": time.time()})
        found = fetch(f"http://127.0.0.1:{self.ports['prometheus']}/api/v1/query?{words}")["data"]["result"]
        return {
            tuple(one["metric"][label] for label in ("status", "instance") if label in one["metric"]): float(
                one["value"][1]
            )
            for one in found
        }

    def alerts(self, name: str) -> list[dict[str, Any]]:
        found = fetch(f"http://127.0.0.1:{self.ports['prometheus']}/api/v1/alerts")["data"]["alerts"]
        return [one for one in found if one["labels"]["alertname"] == name and one["state"] == "firing"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    try:
        yield found
    finally:
        found.stop()


BOTH = {"parked": 1, "orphaned": 1}


def _leave_two_runs(site: Site) -> None:
    """Kill a process that has a parked and a running run."""
    site.start_host("host", "pay", "hang")
    until(lambda: site.statuses("host") == {"parked": 1, "running": 1}, 60, "a parked and a running run")
    site.kill("host")


@pytest.mark.canary
@pytest.mark.campaign
def test_after_a_kill_a_restarted_process_and_a_watch_show_the_same_parked_run_and_orphan(site: Site) -> None:
    _leave_two_runs(site)
    site.start_host("host")
    until(lambda: site.statuses("host") == BOTH, 60, "the runs after a restart")
    site.start_watch()
    until(lambda: site.runs("watch") == site.runs("host"), 60, "the same runs on both pages")
    assert {labels[1:] for labels in site.runs("host")} == {
        ("support", "parked", "approval"),
        ("support", "orphaned", "none"),
    }


@pytest.mark.campaign
@pytest.mark.system("prometheus")
def test_prometheus_counts_each_run_once_however_many_processes_serve_its_journal(site: Site) -> None:
    _leave_two_runs(site)
    for name in ("host", "beside"):
        site.start_host(name)
    site.start_watch()
    site.start_prometheus()
    each = {
        (status, f"127.0.0.1:{site.ports[name]}") for status in BOTH for name in ("host", "beside", "watch")
    }
    until(lambda: site.query("orchestrator_journal_runs").keys() == each, 60, "three processes with two runs")
    once = {(status,): 1.0 for status in BOTH}
    until(lambda: site.query(f"sum by (status) ({RUNS})") == once, 60, "each run once")
    (alert,) = until(lambda: site.alerts("OrchestratorRunsOrphaned"), 60, "the alert about the orphan")
    assert f"sqlite {os.path.realpath(site.folder / 'runs.db')} " in alert["annotations"]["description"]
    for name in ("host", "beside"):
        site.kill(name)
    gone = {f"127.0.0.1:{site.ports[name]}" for name in ("host", "beside")}
    until(lambda: not gone & {place for _, place in site.query("orchestrator_journal_runs")}, 60, "their end")
    until(lambda: site.query(f"sum by (status) ({RUNS})") == once, 60, "each run once, of the watch alone")
    until(lambda: len(site.alerts("OrchestratorRunsOrphaned")) == 1, 60, "the same alert")
