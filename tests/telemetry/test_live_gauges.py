"""What the collector says at a scrape: runs, engines, limits, stores, logs; and exemplars."""

from __future__ import annotations

import gc
import io
import math
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.fact import (
    AdmissionRejected,
    LLMCall,
    RolledBack,
    RunAdmitted,
    RunCompleted,
    RunParked,
    RunRecovered,
    RunStarted,
    ToolExecution,
    Transition,
)
from orchestrator.telemetry.catalogue import PREFIX
from orchestrator.telemetry.connection import connect
from orchestrator.telemetry.exposition.stored import JournalCollector, registry_of
from orchestrator.telemetry.instrument import MOST_DEFINITIONS, Load, file_bytes
from orchestrator.telemetry.live import LiveRun, LiveRuns
from orchestrator.telemetry.log import BoundedWriter, TransitionLog, span_of
from orchestrator.telemetry.metrics import (
    LiveCollector,
    Metrics,
    SharedGauges,
    instruments_of,
    process_identity,
)
from tests.telemetry.loop import CANARY, LOOP, Event, Rig, State
from tests.telemetry.sampling import sampled

SPAN = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"}


@pytest.fixture
def metrics() -> Metrics:
    found = Metrics(CollectorRegistry())
    found.declare(LOOP, tools=["search"], model="gpt", run_seconds=900.0)
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return sampled(metrics.registry, name, **labels)


def started(run_id: str, at: float = 100.0, **more: Any) -> RunStarted:
    return RunStarted("loop", run_id, at, **{"state": "begin", **more})


def moved(run_id: str, at: float, dest: str = "think") -> Transition:
    return Transition("loop", run_id, 1, "go", "begin", dest, 1.0, at, 0)


def ended(run_id: str) -> RunCompleted:
    return RunCompleted("loop", run_id, "done", "completed", "none", 9.0, 8.5, 7, 3)


# ---- the process ----


def test_the_clock_is_read_at_each_scrape(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    for now in (1_000_000.0, 992_800.0):  # set back by two hours
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert value(metrics, "process_time_seconds") == now


def identity() -> str:
    """Return the identity that a scrape of this process shows."""
    (labels,) = process_identity()["target_info"]
    return labels[0]


def test_a_process_keeps_its_identity_and_a_fork_of_it_has_another() -> None:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, identity().encode())
        os._exit(0)
    os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        os.close(writer)
        forked = said.read()
    assert re.fullmatch("[0-9a-f]{8}", forked)
    assert identity() == identity() != forked


def test_a_stored_journal_shows_the_clock_and_the_identity_of_its_process() -> None:
    registry = registry_of(JournalCollector(MemoryJournal()))
    assert sampled(registry, "target_info", identity=identity()) == 1
    assert abs((sampled(registry, "process_time_seconds") or 0) - time.time()) < 60


def test_the_time_of_the_last_transition_follows_a_clock_that_is_set_back(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    metrics.observe(started("a", now))
    metrics.observe(moved("a", now))
    assert value(metrics, "last_transition_timestamp_seconds", machine="loop") == now
    metrics.observe(moved("a", now - 5))  # of an edge that is added up later
    assert value(metrics, "last_transition_timestamp_seconds", machine="loop") == now
    now -= 7200
    metrics.observe(moved("a", now))
    assert value(metrics, "last_transition_timestamp_seconds", machine="loop") == now


# ---- runs ----


def test_a_run_is_counted_in_the_state_it_is_in_until_it_ends(metrics: Metrics) -> None:
    assert value(metrics, "runs_active", machine="loop", state="think") == 0
    for fact in (started("a", 100.0), started("b", 101.0), moved("a", 105.0), moved("b", 103.0)):
        metrics.observe(fact)
    assert value(metrics, "runs_active", machine="loop", state="think") == 2
    assert value(metrics, "runs_active", machine="loop", state="begin") == 0
    where = {"machine": "loop", "state": "think"}
    assert value(metrics, "oldest_run_state_entered_timestamp_seconds", **where) == 103.0
    assert value(metrics, "oldest_run_started_timestamp_seconds", machine="loop") == 100.0
    metrics.observe(ended("a"))
    metrics.observe(ended("b"))
    assert value(metrics, "runs_active", machine="loop", state="think") == 0
    assert value(metrics, "oldest_run_state_entered_timestamp_seconds", **where) is None
    assert value(metrics, "oldest_run_started_timestamp_seconds", machine="loop") is None


def test_what_is_written_for_a_scrape_of_several_processes_are_the_figures_of_this_one(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.telemetry.metrics._all", [])  # those of a process that forks
    written = CollectorRegistry()
    gauges = SharedGauges(LiveCollector(instruments_of(metrics.registry)), written)
    try:
        for fact in (started("a", 100.0), started("b", 101.0), moved("a", 105.0), moved("b", 103.0)):
            metrics.observe(fact)
        for active, state_entered, began in ((2, 103.0, 100.0), (1, 103.0, 101.0), (0, math.inf, math.inf)):
            gauges.write()
            where = {"machine": "loop", "state": "think"}
            assert sampled(written, "runs_active", **where) == active
            assert sampled(written, "oldest_run_state_entered_timestamp_seconds", **where) == state_entered
            assert sampled(written, "oldest_run_started_timestamp_seconds", machine="loop") == began
            metrics.observe(ended("a" if active == 2 else "b"))
    finally:
        gauges.writing = threading.Lock()  # its thread ends


def test_terminal_states_have_no_series_of_live_runs(metrics: Metrics) -> None:
    assert value(metrics, "runs_active", machine="loop", state="done") is None


def test_a_parked_run_is_not_active_and_is_shown_with_its_reason(metrics: Metrics) -> None:
    for fact in (started("a"), RunParked("loop", "a", "ask", "approval", 200.0)):
        metrics.observe(fact)
    assert value(metrics, "runs_active", machine="loop", state="begin") == 0
    assert [(run.parked, run.entered_at) for run in metrics.live.current_runs()] == [("approval", 200.0)]
    metrics.observe(started("a", 300.0, origin="resumed", state="ask", elapsed=40.0, dwell=5.0))
    assert [run.parked for run in metrics.live.current_runs()] == [None]
    assert value(metrics, "runs_active", machine="loop", state="ask") == 1
    assert value(metrics, "oldest_run_started_timestamp_seconds", machine="loop") == 260.0
    assert value(metrics, "oldest_run_state_entered_timestamp_seconds", machine="loop", state="ask") == 295.0


def test_a_reason_of_the_hosts_own_is_counted_as_other(metrics: Metrics) -> None:
    metrics.observe(RunParked("loop", "a", "ask", CANARY, 200.0))
    assert value(metrics, "runs_suspended_total", machine="loop", reason="_other") == 1
    assert CANARY not in generate_latest(metrics.registry).decode()


def test_a_late_fact_of_a_run_that_is_over_brings_it_not_back(metrics: Metrics) -> None:
    for fact in (started("a"), ended("a"), moved("a", 105.0)):
        metrics.observe(fact)
    assert metrics.live.runs == {}


async def test_a_run_of_a_driver_is_active_in_its_hook_and_began_when_it_was_created() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.declare(LOOP)
    rig = Rig([metrics])
    seen: list[list[LiveRun]] = []

    async def look(run: Any) -> Event:
        seen.append(metrics.live.current_runs())
        return Event.AGAIN

    await rig.drive(act=look, rounds=1)
    ((run,),) = seen
    assert (run.machine, run.run_id, run.state, run.parked) == ("loop", "r1", "act", None)
    assert run.entered_at - run.started_at == 2.0
    assert metrics.live.current_runs() == []


def test_runs_that_never_end_do_not_pile_up() -> None:
    live = LiveRuns(most=10)
    for number in range(100):
        live.observe(started(str(number)))
        live.observe(RunParked("loop", f"p{number}", "ask", "waiting", 1.0))
    assert [run_id for _, run_id in live.runs] == [str(number) for number in range(90, 100)]
    assert len(live.parkings) == 10


def test_live_runs_can_be_read_from_another_thread_while_they_change() -> None:
    live, failed, stop = LiveRuns(), list[BaseException](), threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                for run in live.current_runs():
                    assert run.state in {"begin", "think"}
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(20_000):
        live.observe(started(str(number % 50)))
        live.observe(moved(str(number % 50), 1.0))
        if number % 3 == 0:
            live.observe(ended(str(number % 50)))
    stop.set()
    reader.join()
    assert failed == []


# ---- engines ----


@dataclass(eq=False)
class Busy:
    """An engine, as far as metrics know one."""

    slots: int = 4
    queued: Mapping[tuple[str, str], int] = field(default_factory=lambda: {("loop", ""): 3})
    phase: str = "running"

    def load(self) -> Load:
        return Load(("loop",), self.slots, self.queued, self.phase)


def test_an_engine_shows_its_slots_and_queue_while_it_is_there(metrics: Metrics) -> None:
    assert value(metrics, "runs_queued", machine="loop") == 0
    assert value(metrics, "run_slots", machine="loop") is None
    one, other = Busy(), Busy(2, {})
    metrics.watch(one)
    metrics.watch(one)
    metrics.watch(other)
    assert value(metrics, "run_slots", machine="loop") == 6
    assert value(metrics, "runs_queued", machine="loop") == 3
    metrics.unwatch(one)
    assert value(metrics, "run_slots", machine="loop") == 2
    del other
    gc.collect()
    assert value(metrics, "run_slots", machine="loop") is None


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ((), "running"),
        (("starting",), "starting"),
        (("running", "starting"), "starting"),
        (("running", "draining"), "draining"),
        (("running", "stopped"), "running"),
        (("stopped",), "stopped"),
    ],
)
def test_the_process_is_in_exactly_one_state(
    metrics: Metrics, phases: tuple[str, ...], expected: str
) -> None:
    engines = [Busy(phase=phase) for phase in phases]
    for engine in engines:
        metrics.watch(engine)
    states = {
        state: value(metrics, "runtime_state", state=state)
        for state in ("starting", "running", "draining", "stopped")
    }
    assert states == {state: float(state == expected) for state in states}


def test_an_engine_that_raises_costs_its_own_figures_and_is_counted(metrics: Metrics) -> None:
    class Broken:
        def load(self) -> Load:
            raise RuntimeError(CANARY)

    broken = Broken()
    metrics.watch(broken)
    assert value(metrics, "runs_active", machine="loop", state="think") == 0
    assert value(metrics, "runs_queued", machine="loop") is None
    assert (value(metrics, "telemetry_errors_total", component="collector") or 0) >= 1
    assert CANARY not in generate_latest(metrics.registry).decode()


def test_what_engines_tell_in_facts_is_counted(metrics: Metrics) -> None:
    for fact in (
        RunAdmitted("loop", "r1", 0.25, 1.0),
        AdmissionRejected("loop", "r2", "queue_full", 1.0),
        RunRecovered("loop", "r3", "resumed", 1.0),
        RolledBack("loop", "r3", "undone", 1.0),
    ):
        metrics.observe(fact)
    assert value(metrics, "run_queue_wait_seconds_sum", machine="loop") == 0.25
    assert value(metrics, "runs_rejected_total", machine="loop", reason="queue_full") == 1
    assert value(metrics, "recoveries_total", machine="loop", outcome="resumed") == 1
    assert value(metrics, "rollbacks_total", machine="loop", outcome="undone") == 1


# ---- what was declared ----


def test_information_about_build_and_graphs_is_a_metric_of_1() -> None:
    registry = CollectorRegistry()
    Metrics(registry).declare(LOOP)
    for name in ("build_info", "machine_info"):
        values = [
            one.value for family in registry.collect() for one in family.samples if one.name.endswith(name)
        ]
        assert values == [1.0], name


def test_declared_limits_are_metrics_so_that_alerts_need_no_numbers(metrics: Metrics) -> None:
    assert value(metrics, "state_timeout_seconds", machine="loop", state="think") == 60.0
    assert value(metrics, "state_timeout_seconds", machine="loop", state="ask") is None
    assert value(metrics, "run_timeout_seconds", machine="loop") == 900.0
    metrics.declare(LOOP)
    assert value(metrics, "run_timeout_seconds", machine="loop") == 900.0


def test_each_definition_of_a_machine_is_told_apart_and_old_ones_are_forgotten(metrics: Metrics) -> None:
    graphs = [
        LOOP.extend(states=(f"more{n}",), edges=(), strict=False, rest=frozenset((f"more{n}",)))
        if n < 0
        else LOOP.extend(without=((row[0].value, row[1].value),), strict=False)
        for n, row in enumerate([row for row in LOOP.rows if row[1] is Event.FAILURE][:3])
    ]
    for graph in graphs * 2:
        metrics.declare(graph)
    text = generate_latest(metrics.registry).decode()
    shown = {graph.fingerprint[:12] for graph in graphs if f'definition="{graph.fingerprint[:12]}"' in text}
    assert len(shown) == 3
    assert text.count("orchestrator_machine_info{") <= MOST_DEFINITIONS
    assert "orchestrator_build_info{" in text


# ---- stores, logs, time ----


def test_stores_are_measured_at_each_scrape_and_added_up(metrics: Metrics, tmp_path: Any) -> None:
    file = tmp_path / "j.db"
    metrics.measure_store("sqlite", "j", lambda: file_bytes(file))
    metrics.measure_store("sqlite", "j", lambda: file_bytes(file))
    assert value(metrics, "journal_bytes", backend="sqlite") == 0
    file.write_bytes(b"x" * 100)
    (tmp_path / "j.db-wal").write_bytes(b"x" * 20)
    (tmp_path / "j.db-blobs").mkdir()
    (tmp_path / "j.db-blobs" / "one").write_bytes(b"x" * 3)
    assert value(metrics, "journal_bytes", backend="sqlite") == 123


def test_lines_are_counted_by_level_and_survive_their_log(metrics: Metrics) -> None:
    assert value(metrics, "log_records_total", level="info") == 0
    log = TransitionLog(io.BytesIO())
    metrics.count_lines(*log.tallies)
    metrics.count_lines(*log.tallies)
    log.observe(moved("a", 1.0))
    log.bound("a", "loop").warning("x")
    del log
    gc.collect()
    assert value(metrics, "log_records_total", level="info") == 1
    assert value(metrics, "log_records_total", level="warning") == 1
    assert value(metrics, "log_records_dropped_total") == 0


def test_lines_that_were_dropped_are_counted(metrics: Metrics) -> None:
    writer = BoundedWriter(io.BytesIO(), most=1)
    writer.tally.dropped = 7
    metrics.count_lines(*TransitionLog(writer).tallies)
    assert value(metrics, "log_records_dropped_total") == 7


def test_the_watchdogs_figures_and_the_collectors_own_time_are_there(metrics: Metrics) -> None:
    assert value(metrics, "event_loop_lag_seconds_count") == 0
    metrics.loop_lag(0.02)
    metrics.loop_blocked()
    assert value(metrics, "event_loop_lag_seconds_sum") == 0.02
    assert value(metrics, "event_loop_blocked_total") == 1
    assert (value(metrics, "collector_duration_seconds") or 0) > 0


def test_a_request_that_was_streamed_and_one_that_fills_the_context(metrics: Metrics) -> None:
    model = {"provider": "_unknown", "model": "gpt"}
    assert value(metrics, "llm_time_to_first_token_seconds_count", **model) == 0
    metrics.observe(LLMCall("loop", "a", "think", 1, "gpt", "ok", 0.5, first_token=0.25, context_used=0.75))
    assert value(metrics, "llm_time_to_first_token_seconds_sum", **model) == 0.25
    assert value(metrics, "context_used_ratio_sum", machine="loop") == 0.75


# ---- exemplars ----


def test_durations_carry_the_span_they_belong_to() -> None:
    spans: list[Mapping[str, str] | None] = [SPAN, None, {"trace_id": CANARY, "span_id": "x"}]
    metrics = Metrics(CollectorRegistry(), exemplar=lambda: spans[0])
    metrics.declare(LOOP, tools=["search"], model="gpt")
    for _ in range(3):
        metrics.observe(started("a"))
        metrics.observe(moved("a", 1.0))
        metrics.observe(ToolExecution("loop", "a", 1, 0, "search", "ok", 0.5))
        metrics.observe(LLMCall("loop", "a", "think", 1, "gpt", "ok", 0.5))
        metrics.observe(ended("a"))
        spans.pop(0)
        if not spans:
            break
    render: Any = openmetrics
    text = render(metrics.registry).decode()
    marked = {line.partition("_bucket")[0] for line in text.splitlines() if SPAN["trace_id"] in line}
    assert marked == {
        PREFIX + name
        for name in (
            "state_duration_seconds",
            "tool_call_duration_seconds",
            "llm_request_duration_seconds",
            "run_duration_seconds",
        )
    }
    assert CANARY not in text


@pytest.mark.parametrize(
    "told", [None, {}, {"trace_id": "x" * 32, "span_id": "0" * 16}, {"trace_id": "0" * 32}]
)
def test_what_is_no_span_is_left_out(told: Mapping[str, str] | None) -> None:
    assert span_of(lambda: told) is None
    assert span_of(lambda: SPAN | {"user": CANARY}) == SPAN


def test_a_state_of_another_graph_is_unknown(metrics: Metrics) -> None:
    metrics.observe(started("a", state=CANARY))
    metrics.observe(RunStarted(CANARY, "b", 1.0, state=State.THINK))
    assert value(metrics, "runs_active", machine="loop", state="_unknown") == 1
    assert value(metrics, "runs_active", machine="_other", state="_unknown") == 1


async def test_an_agents_log_and_journal_are_shown_by_its_metrics(metrics: Metrics, tmp_path: Path) -> None:
    log = TransitionLog(io.BytesIO())
    async with SqliteJournal(tmp_path / "j.db") as journal:
        for _ in range(2):
            connect([log, metrics, object()], journal)
        await Rig([log, metrics], journal=journal).drive()
        size = value(metrics, "journal_bytes", backend="sqlite") or 0
        assert size >= (tmp_path / "j.db").stat().st_size > 0
    lines = value(metrics, "log_records_total", level="info") or 0
    moves = sum(
        sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"{PREFIX}transitions_total"
    )
    assert lines >= moves + 2 > 2


def test_a_journal_in_memory_has_no_bytes(metrics: Metrics) -> None:
    connect([metrics], MemoryJournal())
    assert value(metrics, "journal_bytes", backend="memory") is None
