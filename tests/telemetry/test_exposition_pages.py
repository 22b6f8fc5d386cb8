"""The pages themselves: formats, who may see what, and that nothing is told that should not be."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain_text
from prometheus_client.registry import Collector

from orchestrator.errors import ConfigError
from orchestrator.kernel.fact import LLMCall, RunCompleted, RunStarted
from orchestrator.telemetry.exposition import Pages, writable
from orchestrator.telemetry.exposition import page as page_module
from orchestrator.telemetry.exposition.page import PageRequest, rendered
from orchestrator.telemetry.metrics import Metrics
from tests.telemetry.loop import CANARY, LOOP
from tests.telemetry.serving import SAMPLE, TOKEN, Got, counted, got, live_runs
from tests.tiers import examples

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
HERE = "127.0.0.1"
ELSEWHERE = "192.0.2.7"


def asked(pages: Pages, path: str, query: str = "", client: str = HERE, **headers: str) -> Got:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, sent, body = pages.answer(PageRequest("GET", path, query, named, client))
    return got(status, dict(sent), body)


def value_of(families: Any, name: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return float(found)


# ---- formats ----


def test_without_a_wish_the_metrics_are_plain_text_that_parses_back() -> None:
    answer = asked(Pages(counted(3)), "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert value_of(plain_text(answer.text), SAMPLE, agent="_none", machine="loop", origin="new") == 3


@pytest.mark.parametrize("accept", [OPENMETRICS, PROMETHEUS_3])
def test_openmetrics_is_given_to_whoever_asks_for_it_and_parses_back(accept: str) -> None:
    answer = asked(Pages(counted(3)), "/metrics", accept=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    families = openmetrics(answer.text)  # type: ignore[no-untyped-call]
    assert value_of(families, SAMPLE, agent="_none", machine="loop", origin="new") == 3


_TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=8)
_AMOUNT = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@settings(max_examples=examples(40))
@given(
    names=st.lists(_TEXT | st.sampled_from(['%s "\\ #', "100 %", "} 1.0"]), min_size=1, max_size=3),
    facts=st.lists(st.tuples(st.integers(0, 2), _AMOUNT, st.booleans()), max_size=12),
    accept=st.sampled_from(["", OPENMETRICS, PROMETHEUS_3]),
)
def test_a_page_has_every_byte_that_the_encoder_of_the_library_writes(
    names: list[str], facts: list[tuple[int, float, bool]], accept: str
) -> None:
    registry, spans = CollectorRegistry(), [False]
    foreign = Counter("host_requests", "Of the host.", ["path"], registry=registry)
    metrics = Metrics(registry, exemplar=lambda: {"trace_id": "1", "span_id": "2"} if spans[0] else None)
    for name in names:
        metrics.declare(LOOP, agent=name, model="m")
    encode, _ = choose_encoder(accept)
    for part in (facts[:6], facts[6:]):  # the second page has lines of the first one
        for number, amount, sampled in part:
            spans[0], agent = sampled, names[number % len(names)]
            foreign.labels(agent).inc()
            metrics.observe(RunStarted("loop", "r", 0.0, agent=agent))
            metrics.observe(LLMCall("loop", "r", "think", 1, "m", "ok", amount, 1, 1))
            metrics.observe(RunCompleted("loop", "r", "done", "completed", "none", 1.0, amount, 1, 1))
        whole, page = encode(registry), rendered(registry, accept).body
        assert _timeless(page) == _timeless(whole)


def _timeless(page: bytes) -> bytes:
    return re.sub(rb"(process_time|collector_duration)_seconds \S+", b"", page)


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "nonsense",
        "application/openmetrics-text;version=x",
        "application/openmetrics-text;version=1.0.x",
        "application/openmetrics-text;version=1.0.0\r\nSet-Cookie: a=b",
        "application/openmetrics-text;version=2.\u00e9",
        "text/plain;version=" + "9" * 5_000,
        ";;;,,,===",
    ],
)
def test_a_wish_that_makes_no_sense_is_plain_text_and_never_comes_back(accept: str) -> None:
    answer = asked(Pages(counted()), "/metrics", accept=accept)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_gzip_is_used_where_it_is_understood_and_says_the_same() -> None:
    pages = Pages(counted())
    zipped = asked(pages, "/metrics", accept_encoding="deflate, gzip;q=0.9")
    assert zipped.headers["content-encoding"] == "gzip"
    assert int(zipped.headers["content-length"]) < len(zipped.text) / 4
    assert "content-encoding" not in asked(pages, "/metrics", accept_encoding="deflate").headers
    assert SAMPLE in zipped.text


def test_families_can_be_chosen_by_name() -> None:
    answer = asked(Pages(counted()), "/metrics", query=f"name[]={SAMPLE}&name[]=nothing")
    assert {family.name for family in plain_text(answer.text)} == {"orchestrator_runs_started"}


def test_the_metrics_stand_at_the_root_too_for_hosts_that_mount_them_at_a_path() -> None:
    pages = Pages(counted())
    answers = [
        asked(pages, path, query=f"name[]={SAMPLE}").text for path in ("/metrics", "/metrics/", "/", "")
    ]
    assert answers == answers[:1] * 4


def test_what_is_no_page_is_not_found_and_what_there_is_is_named() -> None:
    answer = asked(Pages(), "/metric")
    assert answer.status == 404
    assert "/debug/runs, /debug/stacks, /healthz, /metrics, /readyz" in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_only_get_and_head_are_answered(method: str) -> None:
    status, headers, body = Pages(counted()).answer(PageRequest(method, "/metrics"))
    assert status == 405
    assert dict(headers) == {
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Allow": "GET, HEAD",
    }


class Broken(Collector):
    def collect(self) -> Iterator[Metric]:
        raise ValueError(CANARY)


def test_a_collector_that_raises_is_a_500_that_quotes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    registry.register(Broken())
    answer = asked(Pages(registry), "/metrics")
    assert (answer.status, answer.text) == (500, "500 Internal Server Error: ValueError inside\n")
    assert caplog.messages == ["/metrics failed: ValueError"]


class Hanging(Collector):
    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def collect(self) -> Iterator[Metric]:
        self.begun.set()
        assert self.go_on.wait(30)
        yield GaugeMetricFamily("a", "a", value=1)


def test_while_a_collector_hangs_the_next_scrape_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "_PATIENCE", 0.05)
    registry, hanging = CollectorRegistry(), Hanging()
    registry.register(hanging)
    pages = Pages(registry)
    hanging.go_on.set()  # registering may have asked already
    first = threading.Thread(target=asked, args=(pages, "/metrics"))
    hanging.begun.clear()
    hanging.go_on.clear()
    first.start()
    assert hanging.begun.wait(120)
    assert asked(pages, "/metrics").status == 503
    assert asked(pages, "/healthz").status == 200
    hanging.go_on.set()
    first.join()
    assert asked(pages, "/metrics").status == 200


@pytest.mark.system("promtool")
def test_promtool_has_nothing_to_say_about_the_metrics(requires: Callable[[str], Path]) -> None:
    text = asked(Pages(counted()), "/metrics").text
    command: list[str | Path] = [requires("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- who may ----


def test_without_a_token_everybody_may_scrape_and_only_this_machine_may_debug() -> None:
    pages = Pages(counted())
    assert asked(pages, "/metrics", client=ELSEWHERE).status == 200
    assert asked(pages, "/healthz", client=ELSEWHERE).status == 200
    for path in ("/debug/runs", "/debug/stacks"):
        assert asked(pages, path, client=HERE).status == 200
        assert asked(pages, path, client=ELSEWHERE).status == 403
        assert asked(pages, path, client="").status == 403


@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": TOKEN},
        {"authorization": "Bearer \u00fc\ud800"},
    ],
)
def test_without_the_right_token_there_are_no_metrics_even_from_here(shown: dict[str, str]) -> None:
    answer = asked(Pages(counted(), token=TOKEN), "/metrics", client=HERE, **shown)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="metrics"'
    assert SAMPLE not in answer.text
    assert TOKEN not in answer.text


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_right_token_opens_everything_from_anywhere(scheme: str) -> None:
    pages = Pages(counted(), token=TOKEN, live=live_runs)
    for path in ("/metrics", "/debug/runs", "/debug/stacks"):
        assert asked(pages, path, client=ELSEWHERE, authorization=f"{scheme} {TOKEN}").status == 200


def test_a_token_of_other_letters_is_compared_by_its_bytes() -> None:
    pages = Pages(counted(), token="gehe\u00efm")  # noqa: S106
    assert asked(pages, "/metrics", authorization="Bearer gehe\u00efm").status == 200
    assert asked(pages, "/metrics", authorization="Bearer geheim").status == 401


def test_with_a_token_this_machine_may_still_debug_and_everybody_may_ask_how_it_is() -> None:
    pages = Pages(counted(), token=TOKEN)
    assert asked(pages, "/debug/runs", client=HERE).status == 200
    assert asked(pages, "/debug/runs", client=ELSEWHERE).status == 401
    assert asked(pages, "/healthz", client=ELSEWHERE).status == 200
    assert asked(pages, "/readyz", client=ELSEWHERE).status == 200


@pytest.mark.parametrize("token", ["", " ", "\n"])
def test_an_empty_token_is_refused_since_it_would_be_none(token: str) -> None:
    with pytest.raises(ConfigError, match="the token is empty"):
        Pages(token=token)


@pytest.mark.parametrize(
    ("client", "headers", "status"),
    [
        ("127.0.0.1", {"host": "127.0.0.1:9464"}, 200),
        ("127.1.2.3", {"host": "localhost"}, 200),
        ("::1", {"host": "[::1]:9464"}, 200),
        ("::ffff:127.0.0.1", {"host": "LOCALHOST:9464"}, 200),
        ("127.0.0.1", {}, 200),
        ("127.0.0.1", {"host": "evil.example:9464"}, 403),
        ("127.0.0.1", {"host": "localhost.evil.example"}, 403),
        ("127.0.0.1", {"host": "[evil]:9464"}, 403),
        ("127.0.0.1", {"host": "localhost", "x-forwarded-for": "192.0.2.7"}, 403),
        ("127.0.0.1", {"host": "localhost", "forwarded": "for=192.0.2.7"}, 403),
        ("127.0.0.1", {"host": "localhost", "via": "1.1 proxy"}, 403),
        ("::ffff:192.0.2.7", {"host": "localhost"}, 403),
        ("0.0.0.0", {"host": "localhost"}, 403),  # noqa: S104
        ("localhost", {"host": "localhost"}, 403),
    ],
)
def test_this_machine_is_known_by_address_and_name_and_not_through_a_proxy(
    client: str, headers: dict[str, str], status: int
) -> None:
    assert Pages().answer(PageRequest("GET", "/debug/runs", headers=headers, client=client)).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-length": "5", "transfer-encoding": "chunked"}, 400),
        ({"content-length": "-5"}, 400),
        ({"content-length": "2000001"}, 413),
        ({"content-length": "0"}, 200),
        ({"transfer-encoding": "chunked"}, 200),
    ],
)
def test_a_request_has_one_length_and_a_bounded_one(headers: dict[str, str], status: int) -> None:
    assert Pages().answer(PageRequest("GET", "/healthz", headers=headers)).status == status


# ---- health ----


@pytest.mark.parametrize(("age", "status"), [(0.0, 200), (4.99, 200), (5.0, 503), (60.0, 503)])
def test_healthz_is_well_while_the_event_loop_moved_within_five_seconds(age: float, status: int) -> None:
    answer = asked(Pages(heartbeat=lambda: age), "/healthz")
    assert answer.status == status
    assert json.loads(answer.text) == {"alive": status == 200, "event_loop_age_seconds": age}


def test_without_a_heartbeat_a_process_that_answers_is_alive() -> None:
    assert json.loads(asked(Pages(), "/healthz").text) == {"alive": True}
    assert json.loads(asked(Pages(heartbeat=lambda: None), "/healthz").text) == {"alive": True}


def test_readyz_needs_every_check_and_names_them() -> None:
    said = {"accepting": True, "journal": True}
    pages = Pages(ready={"accepting": lambda: said["accepting"], "journal": lambda: said["journal"]})
    assert asked(pages, "/readyz").status == 200
    said["journal"] = False
    answer = asked(pages, "/readyz")
    assert answer.status == 503
    assert json.loads(answer.text) == {"ready": False, "checks": said}
    assert asked(Pages(), "/readyz").status == 200


def test_a_check_that_raises_says_no_and_quotes_nothing() -> None:
    def check() -> bool:
        raise OSError(CANARY)

    answer = asked(Pages(ready={"journal": check}), "/readyz")
    assert json.loads(answer.text) == {"ready": False, "checks": {"journal": False}}


def test_while_a_check_hangs_the_answer_is_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "_PATIENCE", 0.05)
    begun, go_on = threading.Event(), threading.Event()

    def check() -> bool:
        begun.set()
        return go_on.wait(30)

    pages = Pages(ready={"journal": check})
    first = threading.Thread(target=asked, args=(pages, "/readyz"))
    first.start()
    assert begun.wait(120)
    answer = asked(pages, "/readyz")
    assert (answer.status, json.loads(answer.text)["ready"]) == (503, False)
    go_on.set()
    first.join()
    assert asked(pages, "/readyz").status == 200


def test_a_place_is_writable_while_it_may_be_written_to_and_has_room(tmp_path: Any) -> None:
    file = tmp_path / "journal.db"
    assert writable(file)()
    file.touch(0o600)
    assert writable(file)()
    assert writable(tmp_path / "not" / "there" / "yet.db")()
    assert not writable(file, room=1 << 60)()


# ---- debug ----


def test_debug_runs_lists_those_longest_in_their_state_first_with_ages_and_why_they_wait() -> None:
    data = json.loads(asked(Pages(live=live_runs, now=lambda: 1000.0), "/debug/runs").text)
    assert data["count"] == 3
    assert data["parked"] == {"approval": 1}
    assert data["runs"] == [
        {
            "run_id": "old",
            "machine": "loop",
            "agent": "",
            "state": "act",
            "age_seconds": 300.0,
            "run_age_seconds": 400.0,
            "parked": None,
        },
        {
            "run_id": "asks",
            "machine": "loop",
            "agent": "",
            "state": "ask",
            "age_seconds": 100.0,
            "run_age_seconds": 200.0,
            "parked": "approval",
        },
        {
            "run_id": "young",
            "machine": "loop",
            "agent": "",
            "state": "think",
            "age_seconds": 5.0,
            "run_age_seconds": 10.0,
            "parked": None,
        },
    ]


def test_debug_runs_says_when_nobody_told_it_of_runs() -> None:
    assert json.loads(asked(Pages(), "/debug/runs").text)["known"] is False


def test_many_runs_are_counted_and_the_first_thousand_listed() -> None:
    many = live_runs() * 700
    data = json.loads(asked(Pages(live=lambda: many), "/debug/runs").text)
    assert (data["count"], len(data["runs"])) == (2_100, 1_000)


async def test_debug_stacks_shows_tasks_where_they_wait_and_threads_and_no_value() -> None:
    go_on = asyncio.Event()

    async def inner(secret: str) -> str:
        await go_on.wait()
        return secret

    async def outer() -> str:
        secret = CANARY
        return await inner(secret)

    tasks = [asyncio.create_task(outer(), name=f"run {number}") for number in range(7)]
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    text = (await asyncio.to_thread(asked, Pages(loop=loop), "/debug/stacks")).text
    assert "7 tasks: 'run 0', 'run 1', 'run 2', 'run 3', 'run 4' and 2 more" in text
    assert (
        text.index(".outer\n") < text.index(".inner\n") < text.index(" Event.wait\n", text.index(".inner\n"))
    )
    assert "thread 'MainThread'" in text
    assert CANARY not in text
    assert "go_on.wait()" not in text  # no source either: it may quote what a value is
    go_on.set()
    await asyncio.gather(*tasks)


def test_debug_stacks_says_when_it_knows_no_event_loop() -> None:
    assert "no event loop is known here" in asked(Pages(), "/debug/stacks").text
