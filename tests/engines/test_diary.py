"""An engine's start, its end and each order are one line of the log each, in the schema of the others."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.run_queue import Phase
from orchestrator.errors import ConfigError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import Posted
from orchestrator.telemetry.log import configure_logging
from tests.engines.stage import Stage, agent, until

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "orchestrator/telemetry/log_schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def log() -> Iterator[io.BytesIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.BytesIO()
    configure_logging(stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def told(log: io.BytesIO) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    for line in lines:
        jsonschema.Draft202012Validator(SCHEMA).validate(line)
        assert "[redacted]" not in line.values()
    return [line for line in lines if line["msg"].startswith("engine.")]


async def test_start_orders_and_end_are_one_line_each(log: io.BytesIO) -> None:
    stage, journal = Stage(), MemoryJournal()
    async with LocalEngine(agent(stage, journal), slots=3, name="mill") as engine:
        await engine.control("pause_all", by="ann", why="look at this", graph="llm_loop")
        await engine.control("disable_tool", by="ann", why="it lies, token=hunter2hunter2", tool="look")
        await engine.control("slots", slots=5, by="ben")
        with pytest.raises(ConfigError):
            await engine.control("block_model", model="gpt", by="ben")  # whoever asked here reads why
        await engine._commands.take(Posted("7", "block_model", {"model": "gpt"}, "eve", number=7))
        await engine._commands.take(Posted("8", "reverse", {"tool": "look"}, "eve", number=8))
        await engine.drain(0.5, by="ann", why="new version")
    lines = told(log)
    assert {(line["logger"], line["engine"], line["run_id"], line["level"]) for line in lines} == {
        ("orchestrator", "mill", engine.run_id, "info")
    }
    assert [(line["msg"], line.get("limit"), line.get("runs")) for line in (lines[0], lines[-1])] == [
        ("engine.started", 3, 0),
        ("engine.ended", None, 0),
    ]
    orders = [[line[key] for key in ("operation", "by", "outcome", "reason")] for line in lines[1:-1]]
    assert orders == [
        ["pause_all", "ann", "ok", "look at this"],
        ["disable_tool", "ann", "ok", "it lies, [redacted]"],
        ["slots", "ben", "ok", ""],
        ["block_model", "eve", "refused", "engine 'mill' has no model 'gpt'; it has: stage"],
        ["reverse", "eve", "refused", lines[5]["reason"]],
        ["drain", "ann", "ok", "new version"],
    ]
    about = [lines[1]["machine"], lines[2]["tool"], lines[3]["limit"], lines[6]["duration_s"]]
    assert about == ["llm_loop", "look", 5, 0.5]


async def test_an_engine_that_is_left_says_who_drained_it_and_what_it_left(log: io.BytesIO) -> None:
    stage, journal = Stage(), MemoryJournal()
    async with LocalEngine(agent(stage, journal)) as engine:
        handle = await engine.submit("ask", run_id="r")
        await until(lambda: handle.phase is Phase.WAITING)
    order, end = told(log)[-2:]
    assert (order["operation"], order["reason"]) == ("drain", "the engine is left")
    assert (end["msg"], end["runs"]) == ("engine.ended", 1)
