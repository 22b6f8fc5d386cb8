"""What an entry does not import before it is used: the time of a start is the modules that it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

AGENT = "from orchestrator import Agent, Limits, tool"
BUILT = """
from orchestrator import Agent
class Model:
    model = "m"
    async def complete(self, request): ...
agent = Agent(Model(), name="a", observers=())
"""
READ = BUILT + "agent.runs"
STREAMED = BUILT + "agent.stream('go')"
TYPED = """
from orchestrator import tool
@tool
def look(query: str) -> str:
    'Look something up.'
"""

EXTRAS = {"apsw", "jsonschema_rs", "prometheus_client", "pydantic_settings", "rich", "structlog", "typer"}
"""Libraries that a journal, a raw schema, the metrics, the command line and their settings need."""
READERS = {"orchestrator.llm.run_event", "orchestrator.runtime.runs.runs", "orchestrator.runtime.run_stream"}
OTHERS = {
    "orchestrator.machines.approval.plan",
    "orchestrator.machines.pipeline",
    "orchestrator.machines.ralph",
    "orchestrator.telemetry.instrument",
    "orchestrator.tools.read_result",
}

ABSENT = {
    "import orchestrator": {"asyncio", "orchestrator.errors", "pydantic_core", "transitions"},
    AGENT: {"pydantic", *EXTRAS, *READERS, *OTHERS},
    BUILT: {"pydantic", *EXTRAS, *READERS, *OTHERS},
    READ: {"pydantic", "orchestrator.runtime.run_stream", *EXTRAS, *OTHERS},
    STREAMED: {"pydantic", *EXTRAS, *OTHERS},
    TYPED: {"orchestrator.journal", "orchestrator.runtime", "transitions", *EXTRAS},
}
"""Program -> modules that it leaves out."""


@pytest.mark.parametrize("entry", ABSENT, ids=lambda entry: entry.strip().splitlines()[-1])
def test_an_entry_imports_nothing_that_it_does_not_use_yet(entry: str) -> None:
    shown = "\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", entry + shown], capture_output=True, text=True, check=True
    )
    loaded = ABSENT[entry].intersection(done.stdout.split())
    assert not loaded
