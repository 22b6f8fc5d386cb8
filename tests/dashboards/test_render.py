"""The page without Grafana, drawn from a server that answers as Prometheus does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

import pytest

from orchestrator.errors import ConfigError
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.ops.pack import dashboards
from orchestrator.ops.panel import Panel, PanelKind, PanelUnit, Query
from orchestrator.ops.render import Prometheus, TimeSeries, TimeWindow, legend, page, shown

NOW = time.time()
WINDOW = TimeWindow(end=NOW, seconds=600, step=60, variables={"machine": "llm_loop"}, rate="2m")
EVIL = '<script>alert("x")</script>'
ALERT = {
    "state": "firing",
    "labels": {"alertname": "OrchestratorRunStuck", "severity": "critical"},
    "annotations": {"description": EVIL},
}


class Fake(ThreadingHTTPServer):
    """Answers every query with two lines; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Fake

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query).get("query", [""])[0]
        self.server.asked.append(query)
        if query == "wrong(":
            self._send(400, {"status": "error", "error": "parse error"})
        elif url.path.endswith("/alerts"):
            self._send(200, {"data": {"alerts": [ALERT]}})
        else:
            self._send(200, {"data": {"result": [_line(url.path, "0.5", 1), _line(url.path, "+Inf", 3)]}})

    def _send(self, status: int, body: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def _line(path: str, le: str, value: float) -> dict[str, Any]:
    labels = {"machine": EVIL, "le": le, "state": "init"}
    if path.endswith("query_range"):
        return {"metric": labels, "values": [[NOW - 60, str(value)], [NOW, "NaN"]]}
    return {"metric": labels, "value": [NOW, str(value)]}


@pytest.fixture
def server() -> Iterator[Fake]:
    fake = Fake()
    threading.Thread(target=fake.serve_forever, args=(0.01,), daemon=True).start()
    yield fake
    fake.shutdown()
    fake.server_close()


def at(server: Fake) -> Prometheus:
    return Prometheus(f"http://127.0.0.1:{server.server_port}")


def test_every_panel_is_drawn_and_no_label_can_break_out(server: Fake) -> None:
    html = page(dashboards([LLM_LOOP]), at(server), WINDOW)
    assert html.count("<article") == sum(len(one.panels) for one in dashboards([LLM_LOOP]))
    assert "no data" not in html
    assert EVIL not in html
    assert "OrchestratorRunStuck" in html
    assert "http://" not in html.replace("http://www.w3.org", "")


def test_the_window_in_the_title_of_a_panel_stays_on_one_line(server: Fake) -> None:
    assert ">Error budget left (3&nbsp;d)</h3>" in page(dashboards([LLM_LOOP]), at(server), WINDOW)


def test_no_variable_of_grafana_reaches_prometheus(server: Fake) -> None:
    page(dashboards([LLM_LOOP]), at(server), WINDOW)
    assert [query for query in server.asked if "$" in query or "%" in query] == []
    assert any('machine=~"llm_loop"' in query for query in server.asked)
    assert any("[2m]" in query for query in server.asked)


def test_what_is_no_number_is_left_out(server: Fake) -> None:
    panel = Panel(title="t", description="d", queries=(Query("up", "{{state}} {{le}}"),))
    (name, line), _ = at(server).lines(panel, WINDOW)
    assert name == "init 0.5"
    assert line == TimeSeries(line.labels, ((NOW - 60, 1.0),))


def test_a_refused_query_says_what_prometheus_said(server: Fake) -> None:
    with pytest.raises(ConfigError, match=r"refuses 'wrong\(': parse error") as refused:
        at(server).instant("wrong(", NOW)
    answer = refused.value.__cause__
    assert isinstance(answer, HTTPError)
    assert answer.closed


def test_no_prometheus_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="no address of a Prometheus"):
        Prometheus("ftp://x")
    with pytest.raises(ConfigError, match="does not answer"):
        Prometheus("http://127.0.0.1:9").instant("up", NOW)


def test_a_line_of_a_panel_that_fails_does_not_cost_the_page(server: Fake) -> None:
    broken = Panel(title="Broken", description="", queries=(Query("wrong("),))
    (one, _) = dashboards([LLM_LOOP])
    row = type(one.rows[0])("row", (broken,))
    changed = type(one)(uid="x", title="x", description="x", rows=(row,))
    assert "parse error" in page([changed], at(server), WINDOW)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.25, PanelUnit.SHARE, "25 %"),
        (0, PanelUnit.SECONDS, "0 s"),
        (0.00025, PanelUnit.SECONDS, "250 µs"),
        (0.025, PanelUnit.SECONDS, "25 ms"),
        (90, PanelUnit.SECONDS, "1.5 min"),
        (7200, PanelUnit.SECONDS, "2 h"),
        (3 * 1024**2, PanelUnit.BYTES, "3 MiB"),
        (12_500, PanelUnit.NUMBER, "12.5 k"),
        (2.5, PanelUnit.RATE, "2.5/s"),
    ],
)
def test_figures_are_read_by_people(value: float, unit: PanelUnit, text: str) -> None:
    assert shown(value, unit) == text


def test_a_legend_keeps_what_it_does_not_know() -> None:
    assert legend("{{a}} {{b}}", {"a": "1"}) == "1 {{b}}"
    assert PanelKind.LINES.value == "timeseries"
