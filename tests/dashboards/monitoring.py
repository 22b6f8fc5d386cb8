"""Debian's Prometheus and Alertmanager on loopback with free ports, a webhook that records, a browser."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.kernel.graph import Graph
from orchestrator.ops.pack import pack, shipped, yaml
from orchestrator.ops.rule import smoke
from tests.ports import free_port
from tests.tiers import SOAK

ROOT = Path(__file__).resolve().parents[2]
SCALE = 30 if SOAK or os.environ.get("ORCHESTRATOR_PICTURES") else 50
"""What every duration of the rules is divided by."""
SCRAPED = "2s"
"""How often Prometheus reads the metrics."""


@functools.cache
def at_once() -> tuple[str, ...]:
    """Return what comes before a command whose times are the subject: it gets a processor at once, if that is allowed.

    The other tests use all processors, and at fifty times the speed a wait of half a second is half a minute.
    """
    first = "nice", "-n", "-5"  # not more: what must not wait must not make the other tests wait for minutes
    allowed = not subprocess.run([*first, "true"], check=True, capture_output=True).stderr
    return first if allowed else ()


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return what the condition gives once it is true. Fails after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.25)


@dataclass
class Process:
    """A program of ours; ended by its own id."""

    name: str
    command: list[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    stdin: int | None = None
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        self.output = (self.folder / f"{self.name}.out").open("ab")
        self.running = subprocess.Popen(
            [*at_once(), *self.command],
            cwd=ROOT,
            env={**os.environ, **self.environment},
            stdin=self.stdin or subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )
        return self.running

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.running is None:
            return
        if self.running.poll() is None:
            self.running.send_signal(how)
            try:
                self.running.wait(10)
            except subprocess.TimeoutExpired:
                self.running.kill()
                self.running.wait(10)
        if self.running.stdin:
            with contextlib.suppress(OSError):
                self.running.stdin.close()
        self.output.close()

    def said(self) -> str:
        return (self.folder / f"{self.name}.out").read_text(errors="replace")


class Webhook:
    """Records every notification of Alertmanager: when, which receiver, alert and status."""

    def __init__(self) -> None:
        self.notes: list[tuple[float, str, dict[str, Any]]] = []
        notes = self.notes

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                notes.extend((time.time(), self.path.strip("/"), alert) for alert in body["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def names(self, status: str, receiver: str | None = None, since: float = 0.0) -> set[str]:
        return {
            alert["labels"]["alertname"]
            for at, path, alert in list(self.notes)
            if alert["status"] == status and receiver in (None, path) and at >= since
        }

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class AgentHost:
    """The application under watch, on one port for all its lives."""

    def __init__(
        self,
        name: str,
        folder: Path,
        role: str = "serving",
        *,
        program: str = "agent_host",
        label: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`label` replaces the address in the label `instance`; `environment` has further variables."""
        self.label = label
        self.name, self.folder, self.port = name, folder, free_port()
        self.told: dict[str, float] = {}
        """Line -> time (epoch seconds) at which the host was told it first."""
        told = [name, str(folder), str(self.port), role]
        command = [sys.executable, "-m", f"tests.dashboards.{program}", *told]
        quiet = {"PROMETHEUS_DISABLE_CREATED_SERIES": "True"}
        self.process = Process(name, command, folder, quiet | dict(environment or {}), subprocess.PIPE)

    @property
    def instance(self) -> str:
        """The label of its series."""
        return self.label or f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process.start()

    def scrape(self) -> str:
        """Return what /metrics says, nothing where nobody answers."""
        try:
            return text_of(f"http://127.0.0.1:{self.port}/metrics")
        except OSError:
            return ""

    def tell(self, line: str) -> None:
        self.told.setdefault(line, time.time())
        assert self.process.running is not None
        assert self.process.running.stdin is not None
        self.process.running.stdin.write(f"{line}\n".encode())
        self.process.running.stdin.flush()

    def thaw(self) -> None:
        """End a freeze: the host hears nothing meanwhile."""
        (self.folder / f"{self.name}.thaw").touch()

    def kill(self) -> None:
        self.process.stop(signal.SIGKILL)


class JournalWatch:
    """`orchestrator metrics serve` on the journal of a host that is dead."""

    label = ""

    def __init__(self, name: str, folder: Path, journal: Path, *options: str) -> None:
        self.port = free_port()
        command = [*(sys.executable, "-m", "orchestrator", "metrics", "serve", "--every", "1")]
        command += ["--port", str(self.port), *(options or ("--alone",)), "--journal", str(journal)]
        self.process = Process(name, command, folder)

    def start(self) -> None:
        self.process.start()

    def kill(self) -> None:
        self.process.stop(signal.SIGKILL)


Target: TypeAlias = AgentHost | JournalWatch


class Monitoring:
    """Prometheus and Alertmanager, with our rules in the smoke profile. A journal is a job of its own."""

    def __init__(self, folder: Path, hosts: Sequence[Target], graphs: list[Graph], history: str = "") -> None:
        self.folder = folder
        self._history = history
        self.webhook = Webhook()
        self.prometheus = f"http://127.0.0.1:{free_port()}"
        self.alertmanager = f"http://127.0.0.1:{free_port()}"
        self._write(hosts, graphs)
        address = self.prometheus.removeprefix("http://")
        self.processes = [
            Process(
                "alertmanager",
                [
                    "prometheus-alertmanager",
                    f"--config.file={folder / 'alertmanager.yml'}",
                    f"--storage.path={folder / 'am'}",
                    f"--web.listen-address={self.alertmanager.removeprefix('http://')}",
                    "--cluster.listen-address=",
                    "--log.level=warn",
                ],
                folder,
            ),
            Process(
                "prometheus",
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address={address}",
                    f"--web.console.templates={folder / 'consoles'}",
                    f"--web.console.libraries={folder / 'consoles'}",
                    "--log.level=warn",
                ],
                folder,
                {"GOGC": "400"},  # or it looks for garbage four times a second
            ),
        ]

    def _write(self, hosts: Sequence[Target], graphs: list[Graph]) -> None:
        # Between two scrapes there is nothing new.
        made = pack(graphs, profile=replace(smoke(SCALE), interval=SCRAPED))
        for name in ("rules.yml", "alerts.yml"):
            (self.folder / name).write_text(made[f"prometheus/{name}"])
        (self.folder / "consoles").mkdir()
        for name in ("orchestrator.html", "orchestrator.lib"):
            (self.folder / "consoles" / name).write_text(shipped(f"consoles/{name}"))
        text = shipped("alertmanager/example.yml").replace("http://127.0.0.1:9097", self._hook())
        text = re.sub(r"(group_wait|group_interval|repeat_interval): \w+", _quick, text)
        (self.folder / "alertmanager.yml").write_text(text)
        jobs: dict[str, list[dict[str, Any]]] = {}
        for host in hosts:
            job = "orchestrator" if isinstance(host, AgentHost) else "orchestrator-journal"
            labels = {"labels": {"instance": host.label}} if host.label else {}
            jobs.setdefault(job, []).append({"targets": [f"127.0.0.1:{host.port}"], **labels})
        config: dict[str, Any] = {
            "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), SCRAPED),
            "rule_files": ["rules.yml", "alerts.yml"],
            "alerting": {
                "alertmanagers": [
                    {"static_configs": [{"targets": [self.alertmanager.removeprefix("http://")]}]}
                ]
            },
            "scrape_configs": [{"job_name": job, "static_configs": targets} for job, targets in jobs.items()],
        }
        (self.folder / "prometheus.yml").write_text(yaml(config))

    def _hook(self) -> str:
        return f"http://127.0.0.1:{self.webhook.server.server_port}"

    def start(self) -> None:
        """Start both, Prometheus with the samples of `history` (OpenMetrics text with times)."""
        if self._history:
            (self.folder / "history.txt").write_text(self._history)
            words = ["promtool", "tsdb", "create-blocks-from", "openmetrics"]
            done = subprocess.run(
                [*words, self.folder / "history.txt", self.folder / "tsdb"], capture_output=True, check=False
            )
            assert done.returncode == 0, done.stderr
        for process in self.processes:
            process.start()
        for address in (self.prometheus, self.alertmanager):
            until(lambda address=address: reachable(f"{address}/-/ready"), 150, f"{address} is ready")  # type: ignore[misc]

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.stop()
        self.webhook.close()

    def firing(self) -> set[str]:
        return {labels["alertname"] for labels in self.alerts()}

    def alerts(self) -> list[dict[str, str]]:
        """Return the labels of each alert that fires."""
        alerts = fetch(f"{self.prometheus}/api/v1/alerts")["data"]["alerts"]
        return [alert["labels"] for alert in alerts if alert["state"] == "firing"]

    def fired(self, seconds: float) -> list[tuple[float, dict[str, str]]]:
        """Return when (epoch seconds) and with which labels alerts fired within so many seconds, first times only."""
        query = urllib.parse.quote(f'ALERTS{{alertstate="firing"}}[{int(1000 * seconds)}ms]')
        found = fetch(f"{self.prometheus}/api/v1/query?query={query}")["data"]["result"]
        return [(series["values"][0][0], series["metric"]) for series in found]

    def inhibited(self) -> set[str]:
        alerts = fetch(f"{self.alertmanager}/api/v2/alerts")
        return {alert["labels"]["alertname"] for alert in alerts if alert["status"]["inhibitedBy"]}


def _quick(found: re.Match[str]) -> str:
    return f"{found[1]}: {'5s' if found[1] == 'repeat_interval' else '1s'}"


def fetch(url: str) -> Any:
    return json.loads(text_of(url))


def text_of(url: str) -> str:
    """Return the body of an answer. Raises HTTPError, closed, for another status than 200."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own, on loopback
            text: str = answer.read().decode()
            return text
    except urllib.error.HTTPError as error:
        error.close()
        raise


def reachable(url: str) -> bool:
    try:
        text_of(url)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running(
    folder: Path,
    hosts: Sequence[Target],
    graphs: list[Graph],
    later: Sequence[Target] = (),
    history: str = "",
) -> Iterator[Monitoring]:
    """Everything started, but what somebody else starts later, and everything stopped."""
    monitoring = Monitoring(folder, [*hosts, *later], graphs, history)
    try:
        for host in hosts:
            host.start()
        monitoring.start()
        yield monitoring
    finally:
        for host in (*hosts, *later):
            host.kill()
        monitoring.stop()


def screenshot(url: str, file: Path, width: int, height: int, folder: Path) -> None:
    """Take a picture of a page."""
    subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder / 'browser'}",
            f"--window-size={width},{height}",
            "--virtual-time-budget=2000",
            f"--screenshot={file}",
            url,
        ],
        check=True,
        timeout=180,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
