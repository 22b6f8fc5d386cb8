"""Secrets of a host that a hostile server repeats: they are in no output and no file."""

from __future__ import annotations

import base64
import html
import io
import json
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import openai
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from orchestrator import Agent, RetryPolicy, Runs, SqliteJournal, tool
from orchestrator.console import Actor, console_app
from orchestrator.errors import OrchestratorError
from orchestrator.kernel.fact import Observer
from orchestrator.providers import OpenAI
from orchestrator.telemetry import Metrics, Spans, TransitionLog
from tests.console.client import Client
from tests.providers.loopback import Asked, Loopback, Reply, in_a_thread, json_reply

Cli = Callable[..., Any]

CANARIES = {
    "key of the model": "sk-canary-key-0123456789",
    "environment": "canary-of-the-environment-1",
    "password of the address": "canary-of-the-address-22",
    "header": "canary-of-the-header-333",
    "query of an address": "canary-of-the-query-4444",
}

ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "percent": lambda text: quote(text, safe=""),
    "hex": lambda text: text.encode().hex(),
    "json": lambda text: json.dumps(text)[1:-1],
    "html": html.escape,
}


def traces(secret: str) -> Iterator[str]:
    """Yield what a leak of a secret would look like."""
    yield secret
    yield quote(secret, safe="")
    yield secret.encode().hex()
    for before in ("", "x", "xx"):
        yield base64.b64encode(f"{before}{secret}".encode()).decode()[4:-4]


def leaks(places: dict[str, str | bytes]) -> list[str]:
    """Return which secret is in which place."""
    return [
        f"{name} in {place}"
        for place, content in places.items()
        for name, secret in CANARIES.items()
        if any(
            trace.encode() in (content if isinstance(content, bytes) else content.encode())
            for trace in traces(secret)
        )
    ]


class EchoServer:
    """A server that repeats the secrets of a request in an error of each encoding, then calls a tool, then fails."""

    def __init__(self) -> None:
        self.requests = 0

    def __call__(self, request: Asked) -> Reply:
        headers = [request.headers.get(name, "") for name in ("authorization", "x-shop-token")]
        known = "\n".join((*headers, request.path.partition("?")[2], CANARIES["environment"]))
        self.requests += 1
        encodings = [*ENCODINGS.values()]
        if self.requests <= len(encodings):
            text = encodings[self.requests - 1](known)
            assert len(text) < 490, "an error is cut behind that"
            return json_reply({"error": {"message": text, "type": "server_error"}}, 500)
        if self.requests == len(encodings) + 1:
            call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            return json_reply({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
        return Reply(400, {"content-type": "text/plain"}, (known.encode(),))


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


SHOP = """
from orchestrator import tool

@tool(effect="pure")
def look() -> str:
    \"\"\"Look.\"\"\"
    return "seen"
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARIES["key of the model"])
    monkeypatch.setenv("SHOP_TOKEN", CANARIES["environment"])


def files_of(folder: Path) -> dict[str, str | bytes]:
    """Return every file that a command wrote."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.suffix not in {".py", ".pyc"}
    }


def test_a_command_prints_and_stores_no_secret_that_a_server_repeats(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_RETRY__BASE", "0.01")
    monkeypatch.setenv("ORCHESTRATOR_RETRY__ATTEMPTS", "9")
    (folder / "shop.py").write_text(SHOP)
    with in_a_thread(EchoServer()) as server:
        address = f"http://ann:{CANARIES['password of the address']}@127.0.0.1:{server.port}/v1"
        model = ("--model", "openai:m", "--base-url", address, "--tool", "shop:look")
        ran = cli(
            "--traceback", "run", "Hello", *model, "--run-id", "r1", "--log", "run.log", "--journal", "j.db"
        )
    assert ran.code == 1, ran.err
    assert server.asked[-1].headers["authorization"].startswith("B")
    assert len(server.asked) == len(ENCODINGS) + 2, ran.err
    assert "**********" in ran.err
    at = ("--journal", "j.db")
    commands = [
        ("runs", "list", *at),
        ("runs", "list", "--json", *at),
        ("runs", "show", "r1", *at),
        ("runs", "show", "r1", "--content", *at),
        ("runs", "show", "r1", "--json", *at),
        ("runs", "events", "r1", "--content", *at),
        ("runs", "export", "r1", "--content", *at),
        ("runs", "replay", "r1", *at),
        ("doctor", *at),
        ("report", "run.log"),
        ("config", "show"),
    ]
    shown = {" ".join(command): cli(*command) for command in commands}
    outputs: dict[str, str | bytes] = {name: done.out + done.err for name, done in shown.items()}
    assert "r1" in outputs["runs list --journal j.db"]
    assert leaks({"run": ran.out + ran.err, **outputs, **files_of(folder)}) == []


async def test_an_agent_records_and_shows_no_secret_that_a_server_repeats(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry, exporter, log = CollectorRegistry(), InMemorySpanExporter(), io.StringIO()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observers: list[Observer] = [
        TransitionLog(stream=log),
        Metrics(registry),
        Spans(provider.get_tracer("scan")),
    ]
    query = {"api_key": CANARIES["query of an address"]}
    headers = {"X-Shop-Token": CANARIES["header"]}
    caplog.set_level(logging.DEBUG)
    async with Loopback(EchoServer()) as server, SqliteJournal(tmp_path / "j.db") as journal:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", default_query=query, default_headers=headers
        ) as client:
            agent = Agent(
                OpenAI("m", client=client),
                name="scanned",
                tools=[look],
                journal=journal,
                observers=observers,
                retry=RetryPolicy(attempts=9, base=0.01),
            )
            result = await agent.run("Hello", run_id="r1")
            with pytest.raises(OrchestratorError) as raised:
                result.raise_for_outcome()
            failure = "".join(traceback.format_exception(raised.value))
        assert len(server.asked) == len(ENCODINGS) + 2
        assert server.asked[0].headers["x-shop-token"] == CANARIES["header"]
        assert CANARIES["query of an address"] in server.asked[0].path
        console = Client(
            console_app(Runs(journal), actor=lambda _: Actor("ann", may_operate=True), content="always")
        )
        pages = {
            path: (await console.get(path))
            for path in ("/", "/runs/r1", "/runs/r1/records", "/machines", "/health")
        }
    assert pages["/runs/r1"].status == 200
    assert "**********" in failure
    own = "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith("orchestrator")
    )
    places: dict[str, str | bytes] = {
        "result": repr(result),
        "traceback": failure,
        "transition log": log.getvalue(),
        "logging": own,
        "metrics": generate_latest(registry),
        "spans": "".join(span.to_json() for span in exporter.get_finished_spans()),
        **{f"console {path}": page.body for path, page in pages.items()},
        **files_of(tmp_path),
    }
    assert "scanned" in log.getvalue()
    assert leaks(places) == []
