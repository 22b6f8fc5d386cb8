"""Several processes behind one page (degraded, and how), and jobs that leave their figures behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.errors import ConfigError
from orchestrator.telemetry.exposition import Batch
from orchestrator.telemetry.exposition.stored import DURATION, SUCCESS, forget, write
from tests.dashboards.monitoring import until
from tests.ports import free_port
from tests.telemetry.loop import CANARY

ROOT = Path(__file__).resolve().parents[2]

# ---- multiprocess mode ----

WORKER = """
import sys
import threading
from orchestrator.kernel.fact import RunCompleted, RunParked, RunStarted
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.telemetry import metrics as module
from orchestrator.telemetry.metrics import Metrics

module.PERIOD = 0.05
metrics = Metrics()
metrics.declare(LLM_LOOP, tools=["search"], model="m")
for number in range(int(sys.argv[1])):
    metrics.observe(RunStarted("llm_loop", str(number), 100.0))
    metrics.observe(RunCompleted("llm_loop", str(number), "terminate_success", "completed", "none", 102.0, 2.0, 5, 1))
metrics.observe(RunStarted("llm_loop", "stays", 100.0, state="init"))
[gauges] = module._all
write, written = gauges.write, threading.Event()
gauges.write = lambda: (write(), written.set())
assert written.wait(60)
sys.stdin.read()
"""

SCRAPE = """
import sys
from orchestrator.telemetry.exposition import Pages
from orchestrator.telemetry.exposition.page import PageRequest

answer = Pages().answer(PageRequest("GET", "/metrics", *sys.argv[1:]))
assert answer.status == 200, answer
sys.stdout.write(answer.body.decode())
"""


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def shared(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "multiproc"
    folder.mkdir()
    return {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder), "PYTHONPATH": str(ROOT)}


APP = """
import logging
from orchestrator.telemetry import asgi_app

logging.basicConfig(format="%(process)d %(message)s")
app = asgi_app()
"""


@pytest.mark.campaign
@pytest.mark.parametrize(("workers", "named"), [(2, 1), (1, 0)])
def test_workers_of_uvicorn_without_a_common_folder_are_named_once(
    tmp_path: Path, workers: int, named: int
) -> None:
    (tmp_path / "host_app.py").write_text(APP)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    output = tmp_path / "output"
    command = [sys.executable, "-m", "uvicorn", "host_app:app", "--port", "0", "--workers", str(workers)]
    command += [
        "--timeout-worker-healthcheck",
        "60",
    ]  # by default a worker is replaced that is silent for 5 s
    with output.open("w") as stream:
        server = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=stream, stderr=stream)
    try:
        started = "Application startup complete"
        until(lambda: output.read_text().count(started) == workers, 60, "every worker is there")
    finally:
        server.terminate()
        server.wait(30)
    assert output.read_text().count("several workers share this port") == named


def test_two_processes_behind_one_page_are_added_up_and_that_is_all(shared: dict[str, str]) -> None:
    def worker(runs: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, str(runs)]
        return subprocess.Popen(command, env=shared, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    workers = [worker(3), worker(4)]
    for each in workers:
        _, err = each.communicate("", timeout=60)
        assert (each.returncode, err) == (0, "")
    done = subprocess.run(
        [sys.executable, "-c", SCRAPE], env=shared, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = samples(done.stdout)
    agent, machine = ("agent", "_none"), ("machine", "llm_loop")
    assert found["orchestrator_runs_started_total", (agent, machine, ("origin", "new"))] == 9
    ended = (agent, machine, ("outcome", "completed"), ("reason", "none"))
    assert found["orchestrator_runs_completed_total", ended] == 7
    assert found["orchestrator_run_duration_seconds_count", (agent, machine)] == 7
    assert found["orchestrator_run_duration_seconds_sum", (agent, machine)] == 14
    # The gauges are those of both processes, which ended without a word of it.
    assert found["orchestrator_runs_active", (agent, machine, ("state", "init"))] == 2
    names = {name for name, _ in found}
    for kept in ("build_info", "machine_info", "runtime_state", "state_timeout_seconds"):
        assert f"orchestrator_{kept}" in names
    assert "process_cpu_seconds_total" not in names


def test_in_that_mode_families_can_be_chosen_too(shared: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", WORKER, "2"], env=shared, input="", text=True, check=False)
    assert done.returncode == 0
    query = "name[]=orchestrator_runs_started_total"
    scraped = subprocess.run(
        [sys.executable, "-c", SCRAPE, query], env=shared, capture_output=True, text=True, check=True
    )
    assert {name for name, _ in samples(scraped.stdout)} == {"orchestrator_runs_started_total"}


# ---- batch jobs ----


class Ticks:
    """A clock that is moved by hand."""

    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def figures(text: str, name: str = "nightly") -> dict[str, float]:
    found = samples(text)
    return {key: value for (key, labels), value in found.items() if labels == (("batch", name),)}


def job(where: Path, at: float, took: float, *, name: str = "nightly", failed: bool = False) -> Batch:
    clock = Ticks(0.0)
    with Batch(name, textfile=where, clock=clock, now=lambda: at) as batch:
        clock.at = took
        batch.failed = failed
    return batch


def test_a_job_that_went_well_leaves_when_and_how_long(tmp_path: Path) -> None:
    file = tmp_path / "nightly.prom"
    job(file, at=1_700_000_000.0, took=12.5)
    assert figures(file.read_text()) == {SUCCESS: 1_700_000_000.0, DURATION: 12.5}
    assert file.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [file]  # nothing half-written beside it


def test_a_job_that_failed_keeps_the_time_of_its_last_success(tmp_path: Path) -> None:
    file = tmp_path / "nightly.prom"
    job(file, at=100.0, took=1.0)
    job(file, at=200.0, took=2.0, failed=True)
    assert figures(file.read_text()) == {SUCCESS: 100.0, DURATION: 2.0}


def test_a_job_that_never_went_well_has_no_time_of_success_at_all(tmp_path: Path) -> None:
    file = tmp_path / "nightly.prom"
    with pytest.raises(ValueError, match="no"), Batch("nightly", textfile=file):
        raise ValueError("no")
    assert figures(file.read_text()).keys() == {DURATION}


@pytest.mark.parametrize("text", ["", "nonsense {", f"{SUCCESS} x\n", f'{SUCCESS}{{batch="other"}} 7\n'])
def test_a_file_that_says_nothing_of_the_job_is_written_anew(tmp_path: Path, text: str) -> None:
    file = tmp_path / "nightly.prom"
    file.write_text(text)
    job(file, at=1.0, took=2.0, failed=True)
    assert figures(file.read_text()) == {DURATION: 2.0}


def test_names_of_any_kind_come_back_as_they_are(tmp_path: Path) -> None:
    name = 'a "name"\\with\nlines'
    job(tmp_path / "a.prom", at=5.0, took=1.0, name=name)
    job(tmp_path / "a.prom", at=6.0, took=2.0, name=name, failed=True)
    assert figures((tmp_path / "a.prom").read_text(), name) == {SUCCESS: 5.0, DURATION: 2.0}


def test_a_reader_finds_the_old_file_or_the_new_one_never_a_part(tmp_path: Path) -> None:
    file, stop, seen = tmp_path / "nightly.prom", threading.Event(), set[float]()
    write(file, "nightly", 1.0, 1.0)

    def read() -> None:
        while not stop.is_set():
            seen.add(figures(file.read_text())[SUCCESS])

    reader = threading.Thread(target=read)
    reader.start()
    last = 1
    while reader.is_alive() and (last < 300 or len(seen) < 20):
        last += 1
        write(file, "nightly", 1.0, float(last))
    stop.set()
    reader.join()
    assert seen <= {float(number) for number in range(1, last + 1)}
    assert len(seen) >= 20


def test_that_the_figures_could_not_be_left_is_said_and_the_job_is_none_the_worse(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch = job(tmp_path / "not" / "there.prom", at=1.0, took=1.0)
    (problem,) = batch.problems
    assert "there.prom did not receive the figures: No such file or directory" in problem
    assert caplog.messages == [problem]


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        (" ", {}, "needs a name"),
        ("a", {"textfile": "a.txt"}, "must end in .prom"),
        ("a", {"gateway": "http://"}, "not the address of a Pushgateway"),
    ],
)
def test_what_cannot_be_is_refused_at_once(name: str, options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Batch(name, **options)  # type: ignore[arg-type]


class Gateway:
    """A web server that writes down what is pushed to it."""

    def __init__(self) -> None:
        self.pushed: list[tuple[str, str, str]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                gateway.pushed.append((self.command, self.path, body))
                self.send_response(202)
                self.end_headers()

            do_POST = do_DELETE = do_PUT  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    thread = threading.Thread(target=gateway.server.serve_forever, args=(0.05,))
    thread.start()
    yield gateway
    gateway.server.shutdown()
    thread.join()
    gateway.server.server_close()


def test_a_success_replaces_the_jobs_group_and_a_failure_only_the_duration(gateway: Gateway) -> None:
    with Batch("nightly", gateway=gateway.url):
        pass
    with Batch("nightly", gateway=gateway.url) as batch:
        batch.failed = True
    forget(gateway.url, "nightly")
    assert batch.problems == []
    assert [(how, where) for how, where, _ in gateway.pushed] == [
        ("PUT", "/metrics/job/nightly"),
        ("POST", "/metrics/job/nightly"),
        ("DELETE", "/metrics/job/nightly"),
    ]
    assert figures(gateway.pushed[0][2]).keys() == {SUCCESS, DURATION}
    assert figures(gateway.pushed[1][2]).keys() == {DURATION}


def test_a_gateway_that_is_gone_is_said_and_costs_nothing_else(gateway: Gateway, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with Batch("nightly", gateway=f"http://127.0.0.1:{port}", textfile=tmp_path / "a.prom") as batch:
            pass
    (problem,) = batch.problems
    assert f"127.0.0.1:{port} did not receive the figures" in problem
    assert (tmp_path / "a.prom").exists()


def test_what_goes_wrong_in_a_job_is_in_no_figure(tmp_path: Path, gateway: Gateway) -> None:
    with (
        pytest.raises(ValueError, match=CANARY),
        Batch("nightly", textfile=tmp_path / "a.prom", gateway=gateway.url),
    ):
        raise ValueError(CANARY)
    assert CANARY not in (tmp_path / "a.prom").read_text() + repr(gateway.pushed)


@pytest.mark.system("prometheus-pushgateway")
def test_a_real_pushgateway_keeps_the_last_success_over_a_failure_until_the_job_is_forgotten(
    requires: Callable[[str], Path],
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command: list[str | Path] = [
        requires("prometheus-pushgateway"),
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            scrape(url)
            with Batch("nightly", gateway=url, now=lambda: 1_700_000_000.0) as good:
                pass
            with Batch("nightly", gateway=url) as bad:
                bad.failed = True
            assert good.problems == bad.problems == []
            kept = {
                name: value
                for (name, labels), value in samples(scrape(url)).items()
                if ("batch", "nightly") in labels
            }
            assert kept[SUCCESS] == 1_700_000_000.0
            assert kept.keys() == {SUCCESS, DURATION}
            forget(url, "nightly")
            until(lambda: SUCCESS not in scrape(url), 20, "the gateway forgets: it answers before it has")
        finally:
            running.terminate()


def scrape(url: str) -> str:
    end = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:  # noqa: S310
                return str(answer.read().decode())
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.02)
