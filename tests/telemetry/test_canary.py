"""Secrets planted wherever text comes from outside turn up in nothing that operators read."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from orchestrator.cli import main
from orchestrator.errors import LLMError
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Request, Response, ToolCall, Usage
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry.log import configure_logging
from orchestrator.telemetry.metrics import Metrics
from orchestrator.telemetry.watchdog import Watchdog, dump
from orchestrator.tools.spec import tool
from tests.telemetry.test_log import VALIDATOR

PLANTED = {
    name: f"plum-{name}-{number:04d}-otter"
    for number, name in enumerate(
        (
            "prompt",
            "instructions",
            "argument",
            "invented",
            "result",
            "exception",
            "cause",
            "url",
            "local",
            "model_error",
            "model_local",
            "hook_error",
            "hook_local",
            "answer",
            "call_id",
            "finish",
            "key",
            "logged",
        )
    )
}
"""Words that no pattern of secrets knows: only never saying them keeps them out."""

DUMPS: list[str] = []
"""Dumps made in the middle of models, tools and hooks."""


@pytest.fixture(autouse=True)
def unchanged_root() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@tool(effect="pure")
async def fetch(query: str) -> str:
    """Fetch something."""
    local = PLANTED["local"]
    DUMPS.append(dump((), asyncio.get_running_loop()))
    return PLANTED["result"] + local


@tool(effect="irreversible")
async def explode(query: str) -> str:
    """Explode."""
    local, url = PLANTED["local"], f"https://bob:{PLANTED['url']}@host/{query}"
    try:
        int(PLANTED["cause"] + local)
    except ValueError as error:
        raise RuntimeError(f"GET {url} said {PLANTED['exception']}") from error
    return ""


class Model:
    """Calls tools, fails once, invents a tool, answers."""

    model, double = "gpt", True

    def __init__(self) -> None:
        self.turn = 0

    async def complete(self, request: Request) -> Response:
        secret = PLANTED["model_local"]
        self.turn += 1
        DUMPS.append(dump((), asyncio.get_running_loop()))
        match self.turn:
            case 1:
                return self.call("fetch", json.dumps({"query": PLANTED["argument"]}))
            case 2:
                text = f"POST https://api?api_key={PLANTED['key']} {PLANTED['model_error']} {secret}"
                raise LLMError(text, kind="server_error", status=500)
            case 3:
                return self.call(f"call_{PLANTED['invented']}", "{}")
            case 4:
                return self.call("explode", json.dumps({"query": PLANTED["argument"]}))
            case 5:
                return self.call("fetch", f'{{"query": 3, "{PLANTED["argument"]}": 1}}')
            case 6:
                return self.call("fetch", f"not json {PLANTED['argument']}")
        return Response(PLANTED["answer"], finish_reason=PLANTED["finish"], usage=Usage(5, 5))

    @staticmethod
    def call(name: str, arguments: str) -> Response:
        return Response(None, (ToolCall(PLANTED["call_id"], name, arguments),), "tool_calls", Usage(5, 5))


class Hooks:
    """A host's hooks: one that logs what it should not, one that raises at the end."""

    async def enter_update_budgets(self, run: Any) -> None:
        local = PLANTED["hook_local"]
        assert local
        from orchestrator.telemetry.scope import logger_from_context

        logger_from_context().info("a line of the host's", prompt=PLANTED["logged"])

    async def leave_evaluate_response(self, run: Any) -> None:
        local = PLANTED["hook_local"]
        DUMPS.append(dump((), asyncio.get_running_loop()))
        if run.deps.llm.turn >= 7:
            raise ValueError(f"{PLANTED['hook_error']} {local}")


def planted_in(text: str) -> list[str]:
    return [name for name, word in PLANTED.items() if word in text]


def scraped(registry: CollectorRegistry) -> str:
    formats: list[Any] = [generate_latest, openmetrics]
    return "".join(render(registry).decode() for render in formats)


def shown_by(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        main(arguments)
    said = capfd.readouterr()
    return said.out + said.err


def test_planted_secrets_are_in_no_line_metric_dump_or_export_without_content(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, lines, blocked = tmp_path / "journal.db", io.BytesIO(), io.StringIO()
    DUMPS.clear()
    registry = CollectorRegistry()
    metrics = Metrics(registry)

    async def go() -> str:
        log = configure_logging(lines, level="debug")
        async with (
            SqliteJournal(path) as journal,
            Watchdog(metrics, interval=0.01, blocked_after=60, stream=blocked, logger=log.logger) as dog,
        ):
            agent = Agent(
                Model(),
                tools=[fetch, explode],
                instructions=PLANTED["instructions"],
                journal=journal,
                limits=Limits(max_iterations=12),
                retry=RetryPolicy(base=0.0, jitter=0.0),
                observers=[log, metrics],
                hooks=[Hooks()],
            )
            result = await agent.run(PLANTED["prompt"], run_id="r1")
            dog._warn(1.0)
            DUMPS.append(dump(metrics.live.current_runs(), asyncio.get_running_loop()))
            return result.outcome

    assert asyncio.run(go()) == "failed"
    log_text = lines.getvalue().decode()
    for line in log_text.splitlines():
        VALIDATOR.validate(json.loads(line))
    assert '"a line of the host\'s"' in log_text
    assert '"loop.blocked"' in log_text
    assert planted_in(log_text) == []
    assert planted_in(scraped(registry)) == []
    for frame in ("Model.complete", " fetch", "Hooks.leave_evaluate_response"):
        assert frame in "".join(DUMPS)
    assert planted_in("".join(DUMPS) + blocked.getvalue()) == []
    said = capfd.readouterr()
    assert planted_in(said.out + said.err) == []

    where = ("--journal", str(path))
    for command in (
        ("runs", "events", "r1"),
        ("runs", "events", "r1", "--json"),
        ("runs", "list"),
        ("runs", "list", "--json"),
    ):
        shown = shown_by(capfd, *command, *where)
        assert "r1" in shown or "transition" in shown
        assert planted_in(shown) == [], command
    looked = shown_by(capfd, "runs", "show", "r1", *where)
    assert "_unregistered" in looked
    assert not {"invented", "finish"} & set(planted_in(looked))
    exported = shown_by(capfd, "runs", "export", "r1", *where)
    assert "transition" in exported
    assert planted_in(exported) == []
    assert '"_unregistered"' in exported
    assert '"_other"' in exported
    whole = shown_by(capfd, "runs", "events", "r1", "--content", *where)
    assert {"invented", "finish", "argument", "result"} <= set(planted_in(whole))
