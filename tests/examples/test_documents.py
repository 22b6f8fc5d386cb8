"""The example of a queue of documents: real workers, PostgreSQL and Prometheus, and a worker that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.journal.postgres import PostgresJournal
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.runs.runs import Runs
from tests.contract.test_guides import of_language
from tests.examples.process import PATIENCE, command_of_guide, environment, until
from tests.ports import free_port

COUNT = 12
NAMES = {f"letter-{number:02}.txt" for number in range(COUNT)}


@contextmanager
def process(command: list[str], folder: Path, dsn: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes into `folder/log`; none of its group outlives the test."""
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(ORCHESTRATOR_JOURNAL=dsn),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait(PATIENCE)


def lines(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines()


def results(folder: Path) -> list[str]:
    return [line for line in lines(folder) if line.startswith("letter-")]


def numberless(line: str) -> str:
    """A line without the numbers of processes and ports, which differ each time."""
    return re.sub(r"(process |:)\d+", r"\1N", line)


def runs(dsn: str) -> list[RunHead]:
    async def found() -> list[RunHead]:
        async with PostgresJournal(dsn) as journal:
            return list(await Runs(journal).list())

    return asyncio.run(found())


def value(port: int, query: str) -> float:
    """The value of a query of Prometheus, 0 without one."""
    address = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            found = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        error.close()
        return 0.0
    except OSError:
        return 0.0
    return float(found[0]["value"][1]) if found else 0.0


def written(folder: Path) -> None:
    for name in NAMES:
        (folder / f"{name}.part").write_text(f"Letter {name[7:9]}\nDear Ann, all is well here.\n")
        (folder / f"{name}.part").rename(folder / name)


@pytest.mark.campaign
@pytest.mark.system("prometheus")
def test_a_killed_worker_loses_no_document_and_prometheus_has_seen_both(
    database: str, tmp_path: Path
) -> None:
    application, monitor = tmp_path / "application", tmp_path / "monitor"
    application.mkdir()
    monitor.mkdir()
    first, second, prometheus = free_port(), free_port(), free_port()
    targets = [f"127.0.0.1:{port}" for port in (first, second)]
    scrape = {"job_name": "documents", "scrape_interval": "200ms", "static_configs": [{"targets": targets}]}
    (monitor / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))
    command = shlex.split(command_of_guide("documents"))[1:]  # the first word is the address of the journal
    watch = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{prometheus}"]
    with (
        process([*watch, "--storage.tsdb.path=data"], monitor),
        process([*command, "--ports", str(first), str(second)], application, database) as desk,
    ):
        until(lambda: value(prometheus, 'sum(up{job="documents"})') == 2, "both workers are scraped")
        written(application / "inbox")
        until(lambda: len({head.owner for head in runs(database)} - {None}) == 2, "both workers work")
        killed = int(lines(application)[0].removeprefix("worker-1: process ").partition(",")[0])
        os.kill(killed, signal.SIGKILL)
        open_runs = [head.run_id for head in runs(database) if head.status != "ended"]
        assert open_runs, "it was killed in the middle"
        until(lambda: len(results(application)) == COUNT, "every document has a result")
        assert {line.partition(":")[0] for line in results(application)} == NAMES
        [shown] = [one.text for one in of_language("text", "streaming") if one.text.startswith("worker-1")]
        assert {numberless(line) for line in shown.splitlines()} <= set(map(numberless, lines(application)))
        until(lambda: value(prometheus, 'sum(up{job="documents"})') == 1, "one worker is left")
        ended = 'sum(orchestrator_runs_completed_total{machine="llm_loop"})'
        until(lambda: value(prometheus, ended) > 0, "the metrics of the other worker have the runs")
        desk.send_signal(signal.SIGINT)
        assert desk.wait(PATIENCE) == 0, lines(application)[-20:]
    assert lines(application)[-1] == "stopped"
    assert {head.run_id for head in runs(database)} == NAMES
    assert {str(head.outcome) for head in runs(database)} == {"completed"}


def test_without_a_database_the_command_says_what_to_set(tmp_path: Path) -> None:
    with process([sys.executable, "-m", "orchestrator.examples.documents", "inbox"], tmp_path) as application:
        assert application.wait(PATIENCE) == 2
    [line] = lines(tmp_path)
    assert line.endswith("; set ORCHESTRATOR_JOURNAL")
