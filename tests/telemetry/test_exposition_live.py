"""The pages of a process that works: real runs, a real watchdog, a journal, and secrets planted everywhere."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Response
from orchestrator.llm.message import ToolCall as Asked
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry.exposition import page, serve_metrics, writable
from orchestrator.telemetry.metrics import Metrics
from orchestrator.telemetry.watchdog import Watchdog
from orchestrator.tools.spec import tool
from tests.telemetry.loop import CANARY
from tests.telemetry.serving import Got, ask

PAGES = ("/metrics", "/healthz", "/readyz", "/debug/runs", "/debug/stacks")


async def test_a_run_at_work_is_on_every_page_and_nothing_it_works_with_is(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def search(query: str) -> str:
        """Search."""
        key = f"Bearer {query}"
        begun.set()
        await go_on.wait()
        raise ValueError(key)

    llm = ScriptedLLM(
        [
            Response(CANARY, tool_calls=(Asked("1", "search", json.dumps({"query": CANARY})),)),
            Response(CANARY),
        ]
    )
    metrics, path = Metrics(CollectorRegistry()), tmp_path / "journal.db"
    async with SqliteJournal(path) as journal, Watchdog(metrics) as watchdog:
        agent = Agent(llm, tools=[search], journal=journal, instructions=CANARY, observers=[metrics])
        with serve_metrics(
            metrics.registry,
            port=0,
            live=metrics.live.current_runs,
            heartbeat=watchdog.age,
            ready={"journal": writable(path)},
        ) as server:

            async def every_page() -> list[Got]:
                return [await asyncio.to_thread(ask, server.port, path) for path in PAGES]

            running = asyncio.create_task(agent.run(f"What about {CANARY}?", run_id="at-work"))
            await begun.wait()
            # A pure tool begins while its transition is being written.
            while metrics.live.current_runs()[0].state != "process_tools":  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            during = await every_page()
            go_on.set()
            result = await running
            after = await every_page()
    assert result.outcome == "completed"
    assert {got.status for got in during + after} == {200}
    (run,) = json.loads(during[3].text)["runs"]
    assert (run["run_id"], run["machine"], run["state"]) == ("at-work", "llm_loop", "process_tools")
    assert 0 <= run["age_seconds"] <= run["run_age_seconds"] < 60
    assert (
        'orchestrator_runs_active{agent="_none",machine="llm_loop",state="process_tools"} 1.0'
        in during[0].text
    )
    assert ".search\n" in during[4].text
    assert json.loads(after[3].text)["count"] == 0
    assert (
        'orchestrator_runs_active{agent="_none",machine="llm_loop",state="process_tools"} 0.0'
        in after[0].text
    )
    for got in during + after:
        assert CANARY not in got.text


async def test_while_the_event_loop_is_blocked_the_process_is_not_alive_and_still_says_where_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "STALE", 0.3)
    seen: list[Got] = []
    unblocked = threading.Event()
    async with Watchdog() as watchdog:
        with serve_metrics(CollectorRegistry(), port=0, heartbeat=watchdog.age) as server:

            async def alive() -> None:
                while (await asyncio.to_thread(ask, server.port, "/healthz")).status != 200:
                    pass

            def watch() -> None:
                while not seen or seen[-1].status != 503:
                    seen.append(ask(server.port, "/healthz"))
                seen.append(ask(server.port, "/debug/stacks"))
                unblocked.set()

            await alive()
            watcher = threading.Thread(target=watch)
            watcher.start()
            assert unblocked.wait(60)  # in the event loop, on purpose
            watcher.join()
            await alive()
    assert json.loads(seen[-2].text)["alive"] is False
    assert "test_while_the_event_loop_is_blocked" in seen[-1].text
