"""Somebody is told when a run parks, and a run is never the worse for it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.record import RunParked
from orchestrator.llm.message import Response, ToolCall
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry.notice import ParkNotice
from orchestrator.tools.spec import tool
from tests.runtime.stage import until


class Desk:
    """A web server that writes down what is posted to it; the first `broken` requests fail."""

    def __init__(self) -> None:
        self.posted: list[tuple[dict[str, Any], str | None]] = []
        self.asked = 0
        self.broken = 0
        self.elsewhere = ""
        """The address that every request is redirected to."""
        desk = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                desk.asked += 1
                if desk.asked > desk.broken:
                    desk.posted.append((body, self.headers.get("Authorization")))
                if desk.elsewhere:
                    self.send_response(303)
                    self.send_header("Location", desk.elsewhere)
                else:
                    self.send_response(204 if desk.asked > desk.broken else 503)
                self.end_headers()

            def do_GET(self) -> None:
                """Take a request that was redirected."""
                desk.posted.append(({"redirected": True}, self.headers.get("Authorization")))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/parked"


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    thread = threading.Thread(target=desk.server.serve_forever)
    thread.start()
    yield desk
    desk.server.shutdown()
    thread.join()
    desk.server.server_close()


@tool(approval=True)
def pay(secret: str) -> str:
    return f"paid {secret}"


async def parked_run(notice: ParkNotice) -> Outcome:
    llm = ScriptedLLM([Response(None, (ToolCall("a", "pay", '{"secret": "canary"}'),)), "done"])
    agent = Agent(llm, tools=[pay], observers=[notice])
    task = asyncio.create_task(agent.run("pay", run_id="r"))
    await until(lambda: agent._live.find("r") is not None and agent._live.get("r").ctx.ledger.asked)
    await agent.approve("r")
    return (await task).outcome


async def test_a_callback_is_told_once() -> None:
    told: list[RunParked] = []
    assert await parked_run(ParkNotice(told.append)) is Outcome.COMPLETED
    assert [(fact.run_id, fact.state, fact.reason) for fact in told] == [("r", "process_tools", "approval")]


async def test_an_address_is_posted_to_without_content(desk: Desk) -> None:
    notice = ParkNotice(url=desk.url, token="t0ken")  # noqa: S106 - it opens nothing
    assert await parked_run(notice) is Outcome.COMPLETED
    await asyncio.to_thread(notice.close)
    [(body, authorization)] = desk.posted
    assert {name: body[name] for name in ("graph", "run_id", "state", "reason")} == {
        "graph": "llm_loop",
        "run_id": "r",
        "state": "process_tools",
        "reason": "approval",
    }
    assert authorization == "Bearer t0ken"
    assert "canary" not in json.dumps(body)
    assert notice.lost == 0


async def test_a_server_that_fails_is_asked_three_times(desk: Desk) -> None:
    desk.broken = 2
    notice = ParkNotice(url=desk.url)
    await parked_run(notice)
    await asyncio.to_thread(notice.close)
    assert (len(desk.posted), desk.asked, notice.lost) == (1, 3, 0)


async def test_a_redirect_is_not_followed_so_that_the_token_stays_with_the_address(desk: Desk) -> None:
    desk.elsewhere = desk.url.replace("parked", "elsewhere")
    notice = ParkNotice(url=desk.url, token="t0ken")  # noqa: S106 - it opens nothing
    await parked_run(notice)
    await asyncio.to_thread(notice.close)
    assert [body for body, _ in desk.posted if "redirected" in body] == []
    assert (desk.asked, notice.lost) == (3, 1)


async def test_a_notice_that_cannot_be_delivered_is_counted_and_harms_no_run(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.broken = 1_000
    notice = ParkNotice(url=desk.url)
    assert await parked_run(notice) is Outcome.COMPLETED
    await asyncio.to_thread(notice.close)
    assert (desk.asked, notice.lost) == (3, 1)
    assert "a notice of a parked run was not delivered: HTTPError" in caplog.text


@pytest.mark.parametrize("url", ["ftp://a/b", "file:///etc/passwd", "example.org", "http://"])
def test_an_address_nobody_can_post_to_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must start with http:// or https://"):
        ParkNotice(url=url)


def test_a_notice_to_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a recipient"):
        ParkNotice()
