"""The metrics of a journal: every family with its labels and values, from one snapshot."""

from __future__ import annotations

import platform
from collections import Counter
from importlib.metadata import version

from orchestrator.kernel.journal import ORPHANED, PARKED, RUNNING, HeadCount, HeadCounts
from orchestrator.telemetry.catalogue import CATALOGUE, LEVELS, PARKINGS, PHASES, PREFIX, MetricSource
from orchestrator.telemetry.exposition.stored import (
    JournalCollector,
    JournalSnapshot,
    StoredRunStatus,
    registry_of,
)
from orchestrator.telemetry.instrument import HEAD_NAMES

LOOP, DONE = "llm_loop", ("llm_loop", "support", "completed", "none")
STATUSES = (
    StoredRunStatus(LOOP, "running", "await_llm", 50.0, 10.0, agent="support"),
    StoredRunStatus(LOOP, "running", "await_llm", 40.0, 20.0, agent="support"),
    StoredRunStatus(LOOP, "orphaned", "process_tools", 30.0, 5.0, agent="support"),
    StoredRunStatus(LOOP, PARKED, "process_tools", 20.0, 1.0, agent="support"),
    StoredRunStatus(LOOP, PARKED, "process_tools", 2.0, 0.5, agent="support"),
    StoredRunStatus("pipeline", PARKED, "PLANNING", 3.0, 0.25, agent="support"),
)
SNAPSHOT = JournalSnapshot(
    100.0, 0.5, 4096, STATUSES, ended=Counter({DONE: 7}), completed=Counter({DONE: 2}), unreadable=3
)


OF_PROCESS = {"build_info", "process_time_seconds", "target_info"}


class Stored:
    backend, address = "postgres", "postgresql://db/agents"

    def head_counts(self) -> HeadCounts:
        return HeadCounts("1f2e3d4c", (HeadCount(LOOP, "support", PARKED, "approval", 3, 25.0),))


JOURNAL = Stored()


def samples(collector: JournalCollector) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in collector.collect():
        for sample in family.samples:
            name = sample.name.removeprefix(PREFIX)
            found.setdefault(name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_a_snapshot_has_these_metrics() -> None:
    collector = JournalCollector(JOURNAL, {(LOOP, "await_llm"): 600.0}, alone=True)
    collector.show(SNAPSHOT)
    collector.failed()
    found = samples(collector)
    assert [*found.pop("target_info").values()] == [1.0]
    assert found.pop("process_time_seconds")[()] > 0
    assert found == {
        "journal_read_failures_total": {(): 1.0},
        "state_timeout_seconds": {(LOOP, "support", "await_llm"): 600.0},
        "build_info": {(version("fsm-orchestrator"), platform.python_version()): 1.0},
        "runs_active": {(LOOP, "support", "await_llm"): 2.0, (LOOP, "support", "process_tools"): 1.0},
        "oldest_run_state_entered_timestamp_seconds": {
            (LOOP, "support", "await_llm"): 40.0,
            (LOOP, "support", "process_tools"): 30.0,
        },
        "oldest_run_started_timestamp_seconds": {(LOOP, "support"): 5.0},
        "runs_completed_total": {DONE: 2.0},
        "journal_runs": {("1f2e3d4c", LOOP, "support", PARKED, "approval"): 3.0},
        "journal_oldest_update_timestamp_seconds": {("1f2e3d4c", LOOP, "support", PARKED, "approval"): 25.0},
        "journal_info": {("1f2e3d4c", "postgres", "postgresql://db/agents"): 1.0},
        "journal_ended_runs": {DONE: 7.0},
        "journal_runs_waiting_for_agent": {(LOOP, "support"): 0.0, ("pipeline", "support"): 0.0},
        "journal_bytes": {("postgres",): 4096.0},
        "journal_unreadable_runs": {(): 3.0},
        "journal_last_read_timestamp_seconds": {(): 100.0},
        "journal_read_duration_seconds": {(): 0.5},
    }


def test_beside_processes_nothing_that_they_serve_is_served_again_but_the_runs_of_the_journal() -> None:
    collector = JournalCollector(JOURNAL, {(LOOP, "await_llm"): 600.0})
    collector.show(SNAPSHOT)
    unset = {row.name for row in CATALOGUE if row.name.startswith("agent_")}
    stored = {row.name for row in CATALOGUE if row.made is MetricSource.STORED} - unset
    assert samples(collector).keys() == stored | {*HEAD_NAMES, "journal_bytes", *OF_PROCESS}


def test_before_the_first_snapshot_only_the_constant_ones_are_served_and_all_are_described() -> None:
    collector = JournalCollector(JOURNAL)
    assert samples(collector).keys() == {*HEAD_NAMES, *OF_PROCESS}
    named = {family.name for family in collector.describe()}
    collector.show(SNAPSHOT)
    assert {family.name for family in collector.collect()} <= named


def test_the_names_are_those_of_the_catalogue_and_labels_too() -> None:
    collector = JournalCollector(JOURNAL, {(LOOP, "await_llm"): 600.0}, alone=True)
    collector.show(SNAPSHOT)
    labels = {f"{PREFIX}{row.name}": sorted(row.labels) for row in CATALOGUE}
    for family in collector.collect():
        for sample in family.samples:
            assert sorted(sample.labels) == labels[sample.name], sample.name


def test_reasons_and_states_of_runs_are_these_labels() -> None:
    parkings = (
        "approval unknown_effect undo_failed input questions paused waiting interrupted shutdown poison"
    )
    assert " ".join(PARKINGS) == f"{parkings} deps_required other_graph invalid_table"
    assert (RUNNING, ORPHANED, PARKED) == ("running", "orphaned", "parked")
    assert PHASES == ("starting", "running", "draining", "stopped")
    assert LEVELS == ("debug", "info", "warning", "error", "critical")


def test_the_registry_of_a_journal_has_the_metrics_of_its_process_too() -> None:
    collector = JournalCollector(JOURNAL)
    names = {family.name for family in registry_of(collector).collect()}
    assert {"process_cpu_seconds", "python_gc_objects_collected", f"{PREFIX}build"} <= names
