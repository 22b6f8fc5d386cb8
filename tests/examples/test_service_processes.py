"""The web service under real servers: stopped, killed, restarted, and answered in any worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.examples.conftest import Serve, Service
from tests.examples.service_client import PATIENCE, TOKEN, Stream
from tests.postgres import Cluster

EXITS = {"uvicorn": -signal.SIGTERM}
"""uvicorn with one worker stops as it should, and then ends itself by the signal."""


def turns(run: str) -> list[str]:
    """What lets a held run go on to its end."""
    return [f"{run}-{turn}" for turn in range(4)]


def once(run: str) -> dict[str, int]:
    """The effects of a held run, each once."""
    return {f"{run}:{step}": 1 for step in range(3)}


def stopped_with_open_streams(service: Service) -> list[Stream]:
    """Streams of a working and of a waiting run, which the server was asked to stop under."""
    service.client.start("held")
    service.client.start("pay")
    streams = [Stream(service.client, name, reconnects=False) for name in ("held", "pay")]
    service.client.until(lambda: "ModelRequestStarted" in streams[0].names)
    service.client.until(lambda: "RunSuspended" in streams[1].names)
    service.process.send_signal(signal.SIGTERM)
    for stream in streams:
        stream.finished()
        assert stream.error is None
        assert "RunFinished" not in stream.names
    return streams


def drains(service: Service, exit_code: int) -> None:
    stopped_with_open_streams(service)
    assert service.process.poll() is None
    service.go(*turns("held"))
    assert service.process.wait(PATIENCE) == exit_code, service.log()
    assert "Traceback" not in service.log()
    assert (service.head("held").outcome, service.effects("held")) == ("completed", once("held"))
    assert (service.head("pay").status, service.head("pay").owner) == ("parked", None)


@pytest.mark.canary
def test_a_server_that_gets_sigterm_ends_its_streams_drains_and_ends(serve: Serve) -> None:
    drains(serve("main", 1), 0)


@pytest.mark.campaign
@pytest.mark.parametrize("server", ["uvicorn", "gunicorn"])
def test_every_server_with_one_worker_drains(serve: Serve, server: str) -> None:
    drains(serve(server, 1), EXITS.get(server, 0))


@pytest.mark.campaign
def test_a_run_that_does_not_end_in_time_is_left_to_the_next_process(serve: Serve) -> None:
    service = serve("main", 1, grace=0.2)
    stopped_with_open_streams(service)
    assert service.process.wait(PATIENCE) == 0
    assert (service.head("held").status, service.head("held").owner) == ("parked", None)
    service.begin()
    stream = Stream(service.client, "held")
    service.go(*turns("held"))
    assert stream.finished()[-1].name == "RunFinished"
    assert service.effects() == once("held")


@pytest.mark.campaign
def test_a_run_completes_when_the_only_process_is_killed_and_started_again(serve: Serve) -> None:
    service = serve("main", 1)
    service.client.start("held")
    service.go("held-0")
    stream = Stream(service.client, "held")
    service.client.until(lambda: "ToolFinished" in stream.names)
    service.kill()
    service.go(*turns("held"))
    service.begin()
    assert stream.finished()[-1].name == "RunFinished"
    assert stream.connections > 1
    assert stream.ids == service.ids("held")
    assert service.effects() == once("held")


@pytest.mark.campaign
@pytest.mark.system("chromium")
def test_a_browser_follows_a_run_across_a_restart_and_then_stays_away(serve: Serve, tmp_path: Path) -> None:
    service = serve("main", 1, grace=0.0)
    service.client.start("held")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}"]
    with (tmp_path / "browser.log").open("wb") as log:
        browser = subprocess.Popen(
            [
                "chromium",
                *options,
                "--remote-debugging-port=0",
                f"{service.client.url}/page/held?token={TOKEN}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        service.go("held-0")
        service.client.until(lambda: len(seen(tmp_path)["ids"]) > 5)
        assert service.stop() == 0
        service.go(*turns("held"))
        service.begin()
        service.client.until(lambda: seen(tmp_path)["closed"])
    finally:
        browser.kill()
        browser.wait(30)
    assert seen(tmp_path) == {"ids": service.ids("held"), "opened": 2, "closed": True}
    assert service.effects() == once("held")


def seen(folder: Path) -> dict[str, Any]:
    """What the page of the browser has seen."""
    text = (folder / "seen").read_text() if (folder / "seen").exists() else ""
    return json.loads(text) if text else {"ids": [], "opened": 0, "closed": False}


@pytest.mark.campaign
def test_a_started_run_survives_a_kill_before_its_first_step(
    serve: Serve, campaign: Callable[[int, int], int]
) -> None:
    service = serve("main", 1)
    names = [f"held{number}" for number in range(campaign(8, 20))]
    for name in names:
        service.client.start(name)
    service.kill()
    service.go(*(f"{name}-{turn}" for name in names for turn in range(4)))
    service.begin()
    for name in names:
        assert Stream(service.client, name).finished()[-1].data["outcome"] == "completed"


# ---- one server with two workers for all of these, each with runs of its own ----


@pytest.fixture(scope="module")
def service(
    request: pytest.FixtureRequest, postgres: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """A server with two workers, by its name."""
    folder = tmp_path_factory.mktemp(request.param)
    started = Service(
        folder, request.param, 2, postgres.database(), grace=90.0
    )  # a busy machine restarts slowly
    yield started
    started.kill()


def lives(pid: int) -> bool:
    """Tell whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def on(*servers: str) -> pytest.MarkDecorator:
    """Run a test on these servers."""
    return pytest.mark.parametrize("service", servers, indirect=True, scope="module")


@pytest.mark.campaign
@on("main")
def test_a_scrape_adds_up_both_workers(service: Service) -> None:
    """The first of its server: other runs would count too."""

    def completed() -> float:
        with service.client.http() as http:
            lines = http.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith("orchestrator_runs_completed_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in found if 'outcome="completed"' in line)

    names = [f"quick{number}" for number in range(8)]
    for name in names:
        service.client.start(name)
    for name in names:
        Stream(service.client, name).finished()
    service.client.until(lambda: completed() == 8)  # a run counts a moment after its last event
    assert {completed() for _ in range(8)} == {8.0}


@pytest.mark.campaign
@on("main", "uvicorn", "gunicorn")
def test_a_run_completes_in_another_worker_when_its_own_is_killed(service: Service) -> None:
    service.client.start("held-killed")
    service.go("held-killed-0")
    owner = service.process_of("held-killed:0")
    stream = Stream(service.client, "held-killed", service.client.at(lambda pid: pid == owner))
    service.client.until(lambda: "ToolFinished" in stream.names)
    os.kill(owner, signal.SIGKILL)
    service.go(*turns("held-killed"))
    events = stream.finished()
    assert stream.connections > 1
    assert stream.ids == service.ids("held-killed")
    assert (events[-1].name, events[-1].data["output"]) == ("RunFinished", "held-killed: done")
    assert service.effects("held-killed") == once("held-killed")
    assert owner not in {
        pid for prompt, step, pid in service.lines() if prompt == "held-killed" and step in {"1", "2"}
    }
    assert service.client.get("/runs/held-killed/result")["outcome"] == "completed"


@pytest.mark.campaign
@on("uvicorn", "gunicorn")
def test_a_rolling_restart_interrupts_no_run_and_loses_no_event(service: Service) -> None:
    with closing(service.client.at(lambda pid: True)) as one:
        first = int(one.get("/healthz").headers["server-pid"])
    with closing(service.client.at(lambda pid: pid != first)) as other:
        second = int(other.get("/healthz").headers["server-pid"])
    service.client.start("held-rolling")
    service.go("held-rolling-0")
    owner = service.process_of("held-rolling:0")
    stream = Stream(service.client, "held-rolling", service.client.at(lambda pid: pid == owner))
    service.client.until(lambda: "ToolFinished" in stream.names)
    service.process.send_signal(signal.SIGHUP)
    service.client.until(lambda: stream.connections > 1)
    service.go(*turns("held-rolling"))
    assert stream.finished()[-1].data["outcome"] == "completed"
    assert stream.ids == service.ids("held-rolling")
    assert "RunSuspended" not in stream.names
    assert service.effects("held-rolling") == once("held-rolling")
    service.client.until(lambda: not lives(first) and not lives(second))


@pytest.mark.campaign
@on("uvicorn", "gunicorn")
def test_an_irreversible_call_is_approved_in_another_worker(service: Service) -> None:
    service.client.start("pay-approved")
    asked_in = service.process_of("pay-approved:asked")
    with closing(service.client.at(lambda pid: pid != asked_in)) as http:
        service.client.until(lambda: http.get("/runs/pay-approved/questions").json())
        (question,) = http.get("/runs/pay-approved/questions").json()
        assert service.effects("pay-approved") == {}
        answer = {"digest": question["digest"], "why": "ok"}
        approved = http.post("/runs/pay-approved/approve", json=answer)
        assert (approved.status_code, approved.json()) == (200, {"run_id": "pay-approved", "repeated": False})
    events = Stream(service.client, "pay-approved").finished()
    (decided,) = [event.data for event in events if event.name == "QuestionAnswered"]
    assert (decided["decision"], decided["by"], decided["why"]) == ("approve", "ann", "ok")
    assert (events[-1].data["outcome"], service.effects("pay-approved")) == (
        "completed",
        {"pay-approved:pay": 1},
    )


@pytest.mark.campaign
@on("uvicorn")
def test_of_two_answers_in_two_workers_one_counts(service: Service) -> None:
    names = [f"pay{number}" for number in range(5)]
    for name in names:
        service.client.start(name)
    first = service.client.at(lambda pid: True)
    pid = int(first.get("/healthz").headers["server-pid"])
    second = service.client.at(lambda other: other != pid)
    with closing(first), closing(second), ThreadPoolExecutor(2) as pool:
        for name in names:
            service.client.until(lambda: first.get(f"/runs/{name}/questions").json())  # noqa: B023
            (question,) = first.get(f"/runs/{name}/questions").json()
            sent = [
                pool.submit(http.post, f"/runs/{name}/{verb}", json={"digest": question["digest"]})
                for http, verb in ((first, "approve"), (second, "reject"))
            ]
            statuses = [each.result().status_code for each in sent]
            assert sorted(statuses) == [200, 409]
            Stream(service.client, name).finished()
            assert service.effects(name).get(f"{name}:pay", 0) == (statuses[0] == 200)


@pytest.mark.campaign
@on("main", "uvicorn", "gunicorn")
def test_every_server_with_two_workers_drains(service: Service) -> None:
    """The last of a server: it ends."""
    drains(service, 0)
