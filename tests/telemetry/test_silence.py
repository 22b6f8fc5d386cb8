"""Telemetry that something outside has stopped: it continues, or one sentence says what happened."""

from __future__ import annotations

import logging
import logging.config
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from orchestrator import Agent, Runtime
from orchestrator.runtime.service import run_service
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing import ScriptedLLM

COMPLETED = {"machine": "llm_loop", "agent": "a", "outcome": "completed", "reason": "none"}


def agent_of(registry: CollectorRegistry, *answers: str) -> Agent:
    return Agent(ScriptedLLM(answers), name="a", runtime=Runtime(observers=[Metrics(registry)]))


def unregister_all(registry: CollectorRegistry) -> None:
    """What test suites do between two tests."""
    for collector in list(registry._collector_to_names):
        registry.unregister(collector)


def series(registry: CollectorRegistry) -> int:
    return sum(not line.startswith(b"#") for line in generate_latest(registry).splitlines())


async def test_a_run_after_all_collectors_were_removed_counts_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    agent = agent_of(registry, "one", "two", "three")
    await agent.run("go")
    before = series(registry)
    unregister_all(registry)
    assert series(registry) == 0
    with caplog.at_level(logging.WARNING, "orchestrator"):
        await agent.run("go")
        await agent.run("go")
    assert series(registry) == before
    assert registry.get_sample_value("orchestrator_runs_completed_total", COMPLETED) == 3
    [said] = [one.getMessage() for one in caplog.records if "removed from their registry" in one.getMessage()]
    assert "Metrics(CollectorRegistry())" in said


async def test_a_new_agent_on_the_registry_brings_the_metrics_back() -> None:
    registry = CollectorRegistry()
    await agent_of(registry, "one").run("go")
    before = series(registry)
    unregister_all(registry)
    agent_of(registry)
    assert series(registry) == before


@pytest.fixture
def loggers() -> Iterator[None]:
    """Restore what a configuration of logging changes."""
    known = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    before = {one: one.disabled for one in known}
    run_service._warned.clear()
    yield
    for one, disabled in before.items():
        one.disabled = disabled
    run_service._warned.clear()


@pytest.mark.usefixtures("loggers")
async def test_a_configuration_that_disables_our_logger_is_named_once() -> None:
    agent = agent_of(CollectorRegistry(), "one", "two")
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})
    with pytest.warns(RuntimeWarning, match="logger 'orchestrator' is disabled") as told:
        assert [(await agent.run("go")).output for _ in range(2)] == ["one", "two"]
    assert len(told) == 1
    assert "disable_existing_loggers=False" in str(told[0].message)


@pytest.mark.usefixtures("loggers")
@pytest.mark.filterwarnings("error")
async def test_a_configuration_that_keeps_our_logger_needs_no_word() -> None:
    agent = agent_of(CollectorRegistry(), "one")
    logging.config.dictConfig(
        {"version": 1, "disable_existing_loggers": True, "loggers": {"orchestrator": {}}}
    )
    await agent.run("go")


@pytest.mark.parametrize(
    "code",
    [
        "from orchestrator.telemetry import Metrics; Metrics()",
        "from orchestrator.telemetry.exposition.page import rendered; rendered(None)",
    ],
)
def test_a_missing_folder_of_the_multiprocess_mode_is_one_sentence(tmp_path: Path, code: str) -> None:
    folder = str(tmp_path / "missing")
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": folder}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert (
        f"ConfigError: PROMETHEUS_MULTIPROC_DIR is {folder!r}, which is not a folder; create it, empty,"
        in last
    )
