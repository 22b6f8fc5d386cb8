from __future__ import annotations

import asyncio
import gc
import io
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from orchestrator.errors import DeadlineExceeded, LimitReached, LLMError
from orchestrator.kernel.fact import (
    FAILURES,
    AdmissionRejected,
    BranchEnded,
    BudgetChecked,
    EventFailed,
    Fact,
    GuardEvaluated,
    HandedOver,
    JournalWrite,
    LLMCall,
    OperationAttempt,
    RolledBack,
    RunAdmitted,
    RunCompleted,
    RunParked,
    RunRecovered,
    RunStarted,
    ToolExecution,
    Transition,
    WorkAbandoned,
)
from orchestrator.kernel.graph import Edge
from orchestrator.kernel.journal import HeadCount, HeadCounts
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.outcome import REASONS, Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.machines.llm_loop.graph import BUDGET_OF, LLM_LOOP, STALL_OF
from orchestrator.machines.pipeline.graph import LIMITS
from orchestrator.machines.team.graph import LLM_LOOP_WITH_HANDOFFS
from orchestrator.telemetry.catalogue import BUDGET_OF as BUDGET_OF_GUARD
from orchestrator.telemetry.catalogue import (
    BUDGETS,
    CATALOGUE,
    NO_BUDGETS,
    PREFIX,
    ROWS,
    MetricKind,
    MetricSource,
    table,
)
from orchestrator.telemetry.instrument import CAPS, Load, likely_failures, loop_head
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator_guards import GUARD_NAMES, Verdict
from tests.derived import HINT, metric_catalogue
from tests.telemetry.loop import CANARY, LOOP, Context, Deps, Event, Rig, State
from tests.telemetry.sampling import sampled
from tests.telemetry.series_bound import most_series


class Board:
    """A registry, what counts on it, and short ways to read it."""

    def __init__(self, *, declared: bool = True, **names: Any) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        if declared:
            self.metrics.declare(LOOP, **names)

    def tell(self, *facts: Fact) -> Board:
        for fact in facts:
            self.metrics.observe(fact)
        return self

    def value(self, name: str, **labels: str) -> float | None:
        return sampled(self.registry, name, **labels)

    def samples(self, name: str | None = None) -> Iterator[Any]:
        for family in self.registry.collect():
            for sample in family.samples:
                if not sample.name.endswith("_created") and name in (None, sample.name.removeprefix(PREFIX)):
                    yield sample

    def total(self, name: str, **labels: str) -> float:
        return sum((float(s.value) for s in self.samples(name) if labels.items() <= s.labels.items()), 0.0)

    def series(self) -> int:
        return sum(1 for _ in self.samples())

    def counted(self) -> dict[tuple[str, ...], float]:
        """Every counter and every histogram's count that is not 0, by name and label values."""
        return {
            (s.name.removeprefix(PREFIX), *(v for key, v in s.labels.items() if key != "agent")): s.value
            for s in self.samples()
            if s.value and s.name.endswith(("_total", "_count"))
        }


@dataclass(eq=False)
class Standing:
    """An engine that is always as busy as it was when it was made."""

    told: Load

    def load(self) -> Load:
        return self.told


def started(run_id: str = "r1", origin: str = "new", state: str = "begin", at: float = 0.0) -> RunStarted:
    return RunStarted("loop", run_id, at, origin, None, state)


def edge(**changes: Any) -> Transition:
    values: dict[str, Any] = {
        "graph": "loop",
        "run_id": "r1",
        "seq": 1,
        "event": "go",
        "source": "begin",
        "dest": "think",
        "dwell": 1.5,
        "at": 1_700_000_000.25,
        "iteration": 0,
    }
    return Transition(**values | changes)


def ended(**changes: Any) -> RunCompleted:
    values: dict[str, Any] = {
        "graph": "loop",
        "run_id": "r1",
        "state": "done",
        "outcome": "completed",
        "reason": "none",
        "at": 9.0,
        "seconds": 8.5,
        "transitions": 7,
        "iterations": 3,
    }
    return RunCompleted(**values | changes)


# ---- the catalogue ----


def test_every_row_obeys_the_naming_rules() -> None:
    assert len(ROWS) == len(CATALOGUE)
    for row in CATALOGUE:
        assert row.name.endswith("_total") == (row.kind is MetricKind.COUNTER), row.name
        assert row.name.endswith("_info") == (row.kind is MetricKind.INFO), row.name
        assert bool(row.buckets) == (row.kind is MetricKind.HISTOGRAM), row.name
        assert list(row.buckets) == sorted(set(row.buckets)), row.name
        assert row.help.endswith("."), row.name
        assert row.values.keys() <= set(row.labels), row.name
        assert not {"run_id", "user", "url", "error"} & set(row.labels), row.name


def test_the_catalogue_is_the_contract_with_alerts_and_dashboards() -> None:
    golden = Path(__file__).with_name("catalogue.txt")
    assert metric_catalogue() == golden.read_text(encoding="utf-8"), HINT


def test_the_table_of_the_documentation_is_made_from_the_catalogue() -> None:
    golden = Path(__file__).with_name("metric_table.md")
    assert table() == golden.read_text(encoding="utf-8"), HINT


class Stored:
    """A journal in a file with a parked run."""

    backend, address = "sqlite", "runs.db"

    def head_counts(self) -> HeadCounts:
        return HeadCounts("1f2e3d4c", (HeadCount("loop", "", "parked", "approval", 1, 1.0),))


def test_every_metric_is_exposed_under_its_name_type_and_help(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(declared=False)
    left = WorkAbandoned("loop", "r1", "act", "tool", "search", 1.0)
    monkeypatch.setattr("orchestrator.telemetry.metrics.abandoned_work", lambda: [left])
    Metrics(board.registry, objectives={"_none": 60.0}, cost_ceilings={"_none": 5.0})
    board.metrics.declare(LOOP, ["search"], "gpt", backends=["memory"], run_seconds=900.0, currency="USD")
    board.metrics.declare(LOOP, agent="support", version="1", handoffs=[("support", "billing")])
    board.metrics.watch_loop(lambda: 0.25)
    board.metrics.measure_store("sqlite", "here", lambda: 1)
    journal = Stored()
    board.metrics.count_runs(journal)
    engine = Standing(Load(("loop",), 4))
    board.metrics.watch(engine)
    board.tell(started(), edge(), JournalWrite("loop", "r1", "memory", "append", 1, 0.001))
    board.tell(RunParked("loop", "r2", "ask", "waiting", 1.0))
    board.tell(BranchEnded("loop", "r1", "act", 0, "r1:act.1:0", "completed", 1.0))
    families = {family.name: family for family in board.registry.collect()}
    for row in CATALOGUE:
        name = PREFIX + row.name.removesuffix("_total").removesuffix("_info")
        if row.made in {MetricSource.STORED, MetricSource.PUSHED}:
            assert name not in families
            continue
        family = families[name]
        assert (family.type, family.documentation) == (row.kind.value, row.help)
        assert family.samples, row.name


def test_guards_and_budgets_have_one_spelling() -> None:
    for guard, budget in BUDGET_OF.items():
        assert BUDGET_OF_GUARD.get(guard, guard) == budget
    of_the_pipeline = {
        BUDGET_OF_GUARD.get(guard, guard) for guard in ("affordable", "host_budget", "tokens", *LIMITS)
    }
    assert set(BUDGET_OF.values()) | of_the_pipeline == set(BUDGETS)
    assert STALL_OF.keys() <= NO_BUDGETS
    assert NO_BUDGETS | BUDGET_OF_GUARD.keys() <= set(GUARD_NAMES)


# ---- what exists before anything happens ----


def test_importing_creates_nothing_on_the_default_registry() -> None:
    program = (
        "import prometheus_client, orchestrator.telemetry.metrics, orchestrator.telemetry.log\n"
        f"assert {PREFIX!r} not in prometheus_client.generate_latest().decode()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_declared_series_are_there_at_0_before_the_first_run() -> None:
    names: dict[str, Any] = {"tools": ["search"], "guards": ["cost"], "backends": ["sqlite"]}
    board = Board(model="gpt", provider="acme", **names)
    for name, labels in [
        ("runs_started_total", {"machine": "loop", "origin": "resumed"}),
        (
            "transitions_total",
            {"machine": "loop", "from_state": "act", "event": "again", "to_state": "think"},
        ),
        ("state_duration_seconds_count", {"machine": "loop", "state": "act"}),
        ("guard_evaluations_total", {"machine": "loop", "guard": "turns", "result": "error"}),
        ("guard_evaluations_total", {"machine": "loop", "guard": "cost", "result": "deny"}),
        ("tool_calls_total", {"tool": "search", "outcome": "timeout"}),
        ("tool_calls_total", {"tool": "_unregistered", "outcome": "error"}),
        ("llm_requests_total", {"provider": "acme", "model": "gpt", "outcome": "rate_limited"}),
        ("llm_tokens_total", {"machine": "loop", "provider": "acme", "model": "gpt", "direction": "input"}),
        ("retries_total", {"machine": "loop", "operation": "completion", "reason": "schema_invalid"}),
        ("budget_exceeded_total", {"machine": "loop", "budget": "cost"}),
        ("journal_write_failures_total", {"backend": "sqlite", "reason": "full"}),
        ("telemetry_errors_total", {"component": "logs"}),
        ("label_overflow_total", {"metric": "tool_calls_total", "label": "tool"}),
    ]:
        assert board.value(name, **labels) == 0, name


def test_timestamps_are_absent_until_there_is_one() -> None:
    board = Board(backends=["memory"])
    assert list(board.samples("last_transition_timestamp_seconds")) == []
    assert list(board.samples("journal_last_success_timestamp_seconds")) == []


def test_the_table_of_outcomes_and_reasons_is_there_and_closed() -> None:
    board = Board()

    def present() -> set[tuple[str, str]]:
        return {(s.labels["outcome"], s.labels["reason"]) for s in board.samples("runs_completed_total")}

    every = {(outcome.value, reason) for outcome in Outcome for reason in REASONS[outcome]}
    alone = {(outcome, reason) for outcome, reason in every if reason not in {"handed_over", "handoffs"}}
    assert present() == {(outcome, reason) for outcome, reason in alone if reason != "guardrail"}
    board.metrics.declare(LOOP, guards=["short"])  # of an agent with guardrails
    assert present() == alone
    board.metrics.declare(LLM_LOOP_WITH_HANDOFFS)
    assert present() == every
    board.tell(ended(reason=CANARY), ended(outcome=CANARY, reason="none"))
    assert board.value("runs_completed_total", machine="loop", outcome="completed", reason="_other") == 1
    assert board.value("runs_completed_total", machine="loop", outcome="_other", reason="_other") == 1
    assert board.total("label_overflow_total", label="outcome") == 2


def test_every_edge_and_no_other_pair_of_states_is_declared() -> None:
    board = Board()
    present = {tuple(s.labels.values())[2:] for s in board.samples("transitions_total")}
    assert present == {(source, event, dest) for source, event, dest, _ in LOOP.rows}


def test_likely_failures_exist_before_the_first_of_them() -> None:
    failures = set(likely_failures(LLM_LOOP))
    assert (
        "await_llm",
        "start_loop",
        "callback_error",
    ) in failures  # the model call fails in await_llm's enter
    assert ("await_llm", "failure", "timeout") in failures
    assert ("process_tools", "failure", "cancelled") in failures
    assert ("update_budgets", "budget_ok", "guard_error") in failures
    assert {reason for _, _, reason in failures} <= set(FAILURES)


def test_declaring_again_adds_and_counts_nothing() -> None:
    board = Board(tools=["search"], model="gpt")
    before = board.series()
    board.metrics.declare(LOOP, tools=["search"], model="gpt")
    assert board.series() == before
    board.metrics.declare(LOOP.extend(states=("review",), edges=_review()), tools=["fetch"])
    assert board.value("state_entries_total", machine="loop", state="review") == 0
    assert board.value("tool_calls_total", tool="fetch", outcome="ok") == 0
    assert board.counted() == {}


def _review() -> tuple[Any, ...]:
    return (
        Edge(Event.NOTE, (State.THINK,), "review"),
        Edge(Event.STOP, ("review",), State.DONE),
        Edge(Event.FAILURE, ("review",), State.FAILED),
    )


# ---- registries ----


def test_two_registries_do_not_see_each_others() -> None:
    one, other = Board(), Board()
    one.tell(edge())
    assert (one.total("transitions_total"), other.total("transitions_total")) == (1, 0)


def test_any_number_of_observers_share_a_registry() -> None:
    board = Board()
    second = Metrics(board.registry)
    second.observe(edge())
    assert board.tell(edge()).total("transitions_total") == 2


def test_without_a_registry_it_is_the_default_one() -> None:
    assert Metrics().registry is prometheus_client.REGISTRY


def test_a_registry_that_is_let_go_takes_its_instruments_along() -> None:
    registry = CollectorRegistry()
    gone = weakref.ref(registry)
    Metrics(registry).declare(LOOP)
    del registry
    gc.collect()
    assert gone() is None


# ---- what each fact counts ----


def test_a_transition_counts_its_edge_its_states_and_the_time_in_the_one_left() -> None:
    board = Board().tell(edge())
    assert board.counted() == {
        ("transitions_total", "loop", "begin", "go", "think"): 1,
        ("state_duration_seconds_count", "loop", "begin"): 1,
        ("state_entries_total", "loop", "think"): 1,
    }
    assert board.value("state_duration_seconds_sum", machine="loop", state="begin") == 1.5
    assert board.value("last_transition_timestamp_seconds", machine="loop") == 1_700_000_000.25


def test_an_internal_edge_neither_leaves_nor_enters() -> None:
    board = Board().tell(edge(source="ask", dest="ask", event="note", internal=True))
    assert board.counted() == {("transitions_total", "loop", "ask", "note", "ask"): 1}


def test_an_iteration_lasts_from_the_head_of_the_loop_until_it_is_back_or_the_run_ends_well() -> None:
    assert loop_head(LOOP) == "think"
    assert loop_head(LLM_LOOP) == "await_llm"
    board = Board().tell(
        started(),
        started("r2"),
        edge(dwell=100.0),
        edge(event="call", source="think", dest="act", dwell=2.0),
        edge(event="again", source="act", dest="think", dwell=1.0),
        edge(event="stop", source="think", dest="done", dwell=4.0),
        edge(run_id="r2", event="call", source="think", dest="act", dwell=50.0),
        edge(run_id="r2", event="failure", source="act", dest="failed", dwell=50.0),
        ended(run_id="r2"),
    )
    assert board.value("iteration_duration_seconds_count", machine="loop") == 2
    assert board.value("iteration_duration_seconds_sum", machine="loop") == 7.0


def test_a_run_that_parked_begins_a_loop_anew() -> None:
    board = Board().tell(
        started(state="think"),
        edge(event="call", source="think", dest="act", dwell=2.0),
        RunParked("loop", "r1", "act", "approval", 1.0),
        started(origin="resumed", state="act"),
        edge(event="again", source="act", dest="think", dwell=1.0),
    )
    assert board.value("iteration_duration_seconds_count", machine="loop") == 0


def test_a_new_run_enters_its_initial_state_and_a_resumed_one_does_not() -> None:
    board = Board().tell(RunStarted("loop", "r1", 0.0), RunStarted("loop", "r2", 0.0, "resumed"))
    assert board.counted() == {
        ("runs_started_total", "loop", "new"): 1,
        ("runs_started_total", "loop", "resumed"): 1,
        ("state_entries_total", "loop", "begin"): 1,
    }


def test_the_end_of_a_run_counts_outcome_time_loops_restarts_and_shares() -> None:
    summary = {"restarts": 2, "budget_used": {"iterations": 0.3, "time": 0.8, "retries": 0.0}}
    board = Board().tell(ended(summary=summary))
    assert board.counted() == {
        ("runs_completed_total", "loop", "completed", "none"): 1,
        ("run_duration_seconds_count", "loop"): 1,
        ("run_iterations_count", "loop"): 1,
        ("restarts_total", "loop"): 2,
        ("budget_consumed_ratio_count", "loop", "max_iterations"): 1,
        ("budget_consumed_ratio_count", "loop", "time"): 1,
        ("budget_consumed_ratio_count", "loop", "retries"): 1,
    }


@pytest.mark.parametrize("odd", [None, "text", {"restarts": None, "budget_used": None}])
def test_a_summary_of_another_kind_costs_only_itself(odd: object) -> None:
    assert Board().tell(ended(summary=odd)).total("runs_completed_total") == 1


def test_a_request_counts_as_an_attempt_with_its_tokens_by_model_and_by_state() -> None:
    board = Board(models={"gpt": "acme"})
    board.tell(LLMCall("loop", "r1", "think", 1, "gpt", "ok", 0.5, 100, 20, 40, 5))
    assert board.counted() == {
        ("attempts_total", "loop", "llm"): 1,
        ("llm_requests_total", "acme", "gpt", "ok"): 1,
        ("llm_request_duration_seconds_count", "acme", "gpt"): 1,
        ("llm_tokens_total", "loop", "acme", "gpt", "input"): 100,
        ("llm_tokens_total", "loop", "acme", "gpt", "output"): 20,
        ("llm_cached_input_tokens_total", "acme", "gpt"): 40,
        ("llm_reasoning_output_tokens_total", "acme", "gpt"): 5,
        ("state_tokens_total", "loop", "think", "input"): 100,
        ("state_tokens_total", "loop", "think", "output"): 20,
    }


@pytest.mark.parametrize(
    ("reason", "unknown"),
    [("stop", 0), ("MAX_TOKENS", 0), ("filter: SAFETY", 0), (None, 0), ("eclipse", 1), ("", 1)],
)
def test_an_answer_with_an_unknown_finish_reason_is_counted(reason: str | None, unknown: int) -> None:
    board = Board(models={"gpt": "acme"})
    board.tell(LLMCall("loop", "r1", "think", 1, "gpt", "ok", 0.5, finish_reason=reason))
    assert board.total("llm_unknown_finish_reasons_total") == unknown


def test_a_tool_call_counts_as_an_attempt_and_is_timed_if_it_ran() -> None:
    board = Board(tools=["search"]).tell(
        ToolExecution("loop", "r1", 1, 0, "search", "ok", 0.5),
        ToolExecution("loop", "r1", 1, 1, "search", "denied", 0.0),
    )
    assert board.counted() == {
        ("attempts_total", "loop", "tool"): 2,
        ("tool_calls_total", "search", "ok"): 1,
        ("tool_calls_total", "search", "denied"): 1,
        ("tool_call_duration_seconds_count", "search"): 1,
    }


def test_retries_have_a_reason_and_end_as_exhausted() -> None:
    board = Board().tell(
        OperationAttempt("loop", "r1", "llm", 1, "retry", "rate_limited", 0.5),
        OperationAttempt("loop", "r1", "llm", 2, "retry", "malformed", 0.5),
        OperationAttempt("loop", "r1", "llm", 3, "exhausted", "timeout"),
        OperationAttempt("loop", "r1", "completion", 1, "retry", "schema_invalid"),
        OperationAttempt("loop", "r1", "compaction", 1, "ok"),
        OperationAttempt("loop", "r1", "compaction", 2, "exhausted"),
    )
    assert board.counted() == {
        ("retries_total", "loop", "llm", "rate_limited"): 1,
        ("retries_total", "loop", "llm", "other"): 1,
        ("retries_exhausted_total", "loop", "llm"): 1,
        ("attempts_total", "loop", "completion"): 1,
        ("retries_total", "loop", "completion", "schema_invalid"): 1,
        ("attempts_total", "loop", "compaction"): 2,
        ("retries_exhausted_total", "loop", "compaction"): 1,
        ("compactions_total", "loop", "ok"): 1,
        ("compactions_total", "loop", "error"): 1,
    }


def test_guards_are_counted_wherever_they_are_asked() -> None:
    verdicts = [
        Verdict(True, "iterations", 1, 3),
        Verdict(False, "elapsed", 9, 9),
        Verdict(False, "cost", 2, 2),
    ]
    board = Board().tell(
        GuardEvaluated("loop", "r1", "act", "again", "iterations", "deny", 3, 3),
        BudgetChecked("loop", "r1", "act", 1, verdicts),
        GuardEvaluated("loop", "r1", "act", "again", "turns", "error", 0, 0),
    )
    assert board.counted() == {
        ("guard_evaluations_total", "loop", "iterations", "deny"): 1,
        ("guard_evaluations_total", "loop", "iterations", "allow"): 1,
        ("guard_evaluations_total", "loop", "elapsed", "deny"): 1,
        ("guard_evaluations_total", "loop", "cost", "deny"): 1,
        ("guard_evaluations_total", "loop", "turns", "error"): 1,
        ("budget_exceeded_total", "loop", "time"): 1,
    }


def test_a_limit_found_in_the_middle_of_a_state_is_a_budget_exceeded_too() -> None:
    limit = LimitReached(Verdict(False, "input_tokens", 9, 9))
    board = Board().tell(
        EventFailed("loop", "r1", "think", "go", "callback_error", 1.0, 1, "enter_think", limit),
        EventFailed("loop", "r1", "think", "failure", "timeout", 1.0, 1, "", DeadlineExceeded(5.0)),
        BudgetChecked("loop", "r1", "act", 1, [Verdict(False, "no_progress", 3, 3)]),
    )
    assert board.total("budget_exceeded_total", budget="input_tokens") == 1
    assert board.total("budget_exceeded_total", budget="time") == 1
    assert board.total("budget_exceeded_total") == 2


def test_journal_writes_are_timed_and_failures_have_a_reason() -> None:
    board = Board(backends=["sqlite"]).tell(
        JournalWrite("loop", "r1", "sqlite", "append", 3, 0.002),
        JournalWrite("loop", "r1", "sqlite", "create", 1, 0.002),
        JournalWrite("loop", "r1", "sqlite", "append", 3, 0.5, "full"),
        JournalWrite("loop", "r1", "homemade", "append", 1, 0.5, "odd"),
    )
    assert board.counted() == {
        ("journal_write_duration_seconds_count", "sqlite", "append"): 2,
        ("journal_write_failures_total", "sqlite", "full"): 1,
        ("journal_write_failures_total", "_other", "other"): 1,
        ("label_overflow_total", "journal_write_duration_seconds", "backend"): 1,
    }
    assert (board.value("journal_last_success_timestamp_seconds", backend="sqlite") or 0) > 1.6e9


def test_an_exception_inside_is_counted_and_raised_for_the_driver_to_name() -> None:
    board = Board()
    with pytest.raises(ValueError, match="non-negative"):
        board.tell(ended(summary={"restarts": -1}))
    board.metrics.telemetry_error("logs")
    board.metrics.telemetry_error(CANARY)
    assert board.total("telemetry_errors_total", component="metrics") == 1
    assert board.total("telemetry_errors_total", component="logs") == 1
    assert board.total("telemetry_errors_total", component="collector") == 1


def test_a_fact_of_a_later_version_is_passed_over() -> None:
    assert Board().tell(object()).counted() == {}  # type: ignore[arg-type]


# ---- labels are closed sets ----


def test_a_machine_that_nobody_declared_is_counted_without_its_words() -> None:
    board = Board(declared=False).tell(
        RunStarted(CANARY, "r1", 0.0),
        edge(graph=CANARY, source=CANARY, event=CANARY),
        GuardEvaluated(CANARY, "r1", CANARY, CANARY, CANARY, "allow", 1, 1),
        EventFailed(CANARY, "r1", CANARY, CANARY, CANARY, 1.0, 1),
        ended(graph=CANARY),
    )
    assert board.total("transitions_total", machine="_other", event="_unknown") == 1
    assert board.total("runs_completed_total", machine="_other") == 1
    assert CANARY not in generate_latest(board.registry).decode()


def test_thousands_of_invented_names_add_a_handful_of_series(campaign: Callable[[int, int], int]) -> None:
    many = campaign(2_000, 10_000)
    board = Board(tools=["search"], model="gpt")
    declared = board.series()
    for number in range(many):
        name = f"invented_{number}_{CANARY}"
        board.tell(
            ToolExecution("loop", "r1", 1, 0, name, "error", 0.1),
            LLMCall("loop", "r1", name, 1, name, "ok", 0.1, 1, 1, 1, 1),
            EventFailed("loop", "r1", "think", name, "unknown_event", 0.0, 1),
            EventFailed("loop", "r1", name, "go", name, 0.0, 1, f"when:{name}"),
            GuardEvaluated("loop", "r1", name, name, name, name, 1, 1),
            BudgetChecked("loop", "r1", name, 1, [Verdict(False, name, 1, 1)]),
            OperationAttempt("loop", "r1", name, 1, "retry", name),
            JournalWrite("loop", "r1", name, name, 1, 0.1, name),
            RunStarted("loop", "r1", 0.0, name),
            RunParked(name, "r1", name, name, 0.0),
            RunParked("loop", name, name, name, 0.0),
            started(name, name, name),
            RunAdmitted("loop", "r1", 0.1, 0.0),
            AdmissionRejected("loop", "r1", name, 0.0),
            RunRecovered("loop", "r1", name, 0.0),
            RolledBack(name, "r1", name, 0.0),
            HandedOver("loop", "r1", name, name, 0.0),
            ended(outcome=name, reason=name, summary={"budget_used": {name: 0.5}}),
            edge(source=name, event=name, dest=name),
            edge(graph=name),
        )
    assert declared < board.series() <= most_series(LOOP, tools=1, models=1)
    assert board.total("tool_calls_total", tool="_unregistered") == many
    assert board.total("llm_requests_total", model="_other") == many
    assert board.total("label_overflow_total", label="model") == many
    assert board.total("transition_failures_total", event="_unknown") == many
    assert board.total("transitions_total") == 2 * many
    assert len(board.metrics._use.meters.edges) == 0


@pytest.mark.parametrize("kind", ["tool", "model", "machine"])
def test_declared_names_beyond_the_cap_fold_and_are_counted(kind: str) -> None:
    board = Board(declared=False)
    names = [f"{kind}{number}" for number in range(CAPS[kind] + 5)]
    for name in names:
        match kind:
            case "tool":
                board.metrics.declare(LOOP, tools=[name])
                board.tell(ToolExecution("loop", "r1", 1, 0, name, "ok", 0.1))
            case "model":
                board.metrics.declare(LOOP, model=name)
                board.tell(LLMCall("loop", "r1", "think", 1, name, "ok", 0.1))
            case _:
                board.metrics.declare(LOOP.extend(name=name))
                board.tell(edge(graph=name))
    metric = {"tool": "tool_calls_total", "model": "llm_requests_total", "machine": "transitions_total"}[kind]
    assert board.total(metric) == len(names)
    assert board.total(metric, **{kind: "_other"}) == 5
    assert board.total("label_overflow_total", label=kind) >= 5


@pytest.mark.parametrize("name", ["", "x" * 200, "two\nlines", f"https://user:{CANARY}@host"])
def test_a_declared_name_that_is_no_name_folds(name: str) -> None:
    board = Board(tools=[name], model=name)
    assert name == "" or name not in generate_latest(board.registry).decode()


def shown(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    every = (one for family in registry.collect() for one in family.samples)
    return {(one.name, frozenset(one.labels.items())): one.value for one in every}


@given(st.lists(st.sampled_from(sorted(edges := {(s, e, d) for s, e, d, _ in LOOP.rows})), max_size=30))
def test_sums_over_all_labels_are_what_happened(path: list[tuple[State, Event, State]]) -> None:
    board = Board()
    for source, event, dest in path:
        board.tell(edge(source=source.value, event=event.value, dest=dest.value, internal=source == dest))
    moved = sum(source != dest for source, _, dest in path)
    count: Counter[str] = Counter()
    for (name, _), value in shown(board.registry).items():
        count[name.removeprefix(PREFIX)] += int(value)
    assert count["transitions_total"] == len(path)
    assert count["state_entries_total"] == count["state_duration_seconds_count"] == moved


# ---- with the driver ----


async def broken(run: Run[Context, Deps]) -> Event:
    raise LLMError(f"no answer with api_key={CANARY}", kind="server_error")


async def always_again(run: Run[Context, Deps]) -> Event:
    return Event.AGAIN


async def cancelling(run: Run[Context, Deps]) -> Event:
    run.cancel("caller", CANARY)
    await asyncio.sleep(10)
    return Event.AGAIN


async def waiting(run: Run[Context, Deps]) -> Event:
    return Event.WAIT


@pytest.mark.parametrize(
    ("act", "ctx"),
    [(None, {}), (broken, {}), (always_again, {"rounds": 9}), (cancelling, {}), (waiting, {"rounds": 1})],
    ids=["well", "by an error", "by a guard", "by cancel", "after waiting"],
)
async def test_transitions_lines_and_seq_are_one_number_however_the_run_ends(
    tmp_path: Path, act: Any, ctx: dict[str, Any]
) -> None:
    board = Board()
    path = tmp_path / "log"
    with path.open("wb") as stream:
        rig = Rig([TransitionLog(stream), board.metrics])
        driver, run = rig.driver(), rig.run(act=act, **ctx)
        await driver.drive(run)
        if not run.ended:
            run.mailbox.post(Signal(Event.NOTE))
            run.mailbox.post(Signal(Event.ANSWER))
            await driver.drive(run)
    lines = path.read_text(encoding="utf-8").count('"fsm.transition"')
    assert board.total("transitions_total") == lines == run.seq > 0
    assert board.total("runs_completed_total") == 1
    assert board.total("state_entries_total") == board.total("state_duration_seconds_count") + 1
    assert board.metrics.live.runs == {}
    assert not driver.observer_errors
    assert CANARY not in path.read_text(encoding="utf-8") + generate_latest(board.registry).decode()


async def test_a_guard_that_raises_is_counted_as_an_error_of_that_guard() -> None:
    board = Board()

    class Odd:
        def __lt__(self, other: object) -> bool:
            raise RuntimeError(CANARY)

        __gt__ = __lt__

    await Rig([board.metrics]).drive(most=Odd(), rounds=9)
    assert board.total("guard_evaluations_total", guard="turns", result="error") == 1
    assert board.total("transition_failures_total", reason="guard_error") == 1


async def test_metrics_that_break_fail_no_run_and_are_counted_twice() -> None:
    board = Board()
    rig = Rig([board.metrics], summary=lambda _: {"restarts": -1})
    driver, run = rig.driver(), rig.run()
    await driver.drive(run)
    assert run.ended
    assert run.error is None
    assert driver.observer_errors["Metrics"] == 1
    assert board.total("telemetry_errors_total", component="metrics") == 1


@pytest.mark.parametrize(
    ("component", "counted"), [("logs", "logs"), (None, "observer"), (CANARY, "collector")]
)
async def test_an_observer_that_raises_is_counted_by_the_metrics_beside_it(
    component: str | None, counted: str
) -> None:
    class Broken:
        def observe(self, fact: Fact) -> None:
            if isinstance(fact, RunCompleted):
                raise OSError("the disk is full")

    if component is not None:
        Broken.component = component  # type: ignore[attr-defined]
    board = Board()
    rig = Rig([Broken(), board.metrics])
    driver, run = rig.driver(), rig.run()
    await driver.drive(run)
    assert (run.ended, run.error) == (True, None)
    assert driver.observer_errors == {"Broken": 1}
    assert (
        board.total("telemetry_errors_total") == board.total("telemetry_errors_total", component=counted) == 1
    )


async def test_a_log_that_cannot_be_written_is_counted_under_logs() -> None:
    class Full(io.RawIOBase):
        def write(self, line: object) -> int:
            raise OSError("the disk is full")

    board = Board()
    await Rig([TransitionLog(Full()), board.metrics]).drive()  # type: ignore[arg-type]
    lines = board.total("transitions_total") + 2  # its beginning and its end
    assert board.total("telemetry_errors_total", component="logs") == lines


async def test_what_a_transition_cost_the_kernel_is_observed() -> None:
    board = Board()
    await Rig([board.metrics]).drive()
    assert board.value("transition_overhead_seconds_count", machine="loop") == board.total(
        "transitions_total"
    )


@settings(deadline=None)
@given(
    st.lists(
        st.floats(-1, 700, allow_nan=False) | st.sampled_from(ROWS["state_duration_seconds"].buckets),
        max_size=60,
    )
)
def test_a_duration_falls_into_the_same_bucket_as_with_the_library_itself(seconds: list[float]) -> None:
    board = Board()
    theirs = CollectorRegistry()
    row = ROWS["state_duration_seconds"]
    plain = prometheus_client.Histogram(
        PREFIX + row.name, row.help, row.labels, registry=theirs, buckets=row.buckets
    )
    place = plain.labels("loop", "_none", "think")
    for number, value in enumerate(seconds):
        place.observe(value)
        board.tell(Transition("loop", "r", number, "call", "think", "act", value, 1.0, 1))
    ours = shown(board.registry)  # in one look: a look collects all of it
    for sample, value in shown(theirs).items():
        if sample[0].endswith("_sum"):  # a batch is summed at once, and with compensation since Python 3.12
            assert ours[sample] == pytest.approx(value)
        elif not sample[0].endswith("_created"):
            assert ours[sample] == value


async def test_a_tiny_run_reads_like_this_to_prometheus() -> None:
    board = Board()
    rig = Rig(
        [board.metrics],
        ending=lambda _: Ending(Outcome.COMPLETED, "none"),
        summary=lambda run: {"budget_used": {"iterations": run.ctx.iteration / run.ctx.most}},
    )
    await rig.drive(rounds=1)
    text = [
        line
        for line in generate_latest(board.registry).decode().splitlines()
        if not line.startswith("#") and "_created" not in line and not line.endswith(" 0.0")
        if not any(word in line for word in ("_info{", "collector_duration", "process_time"))
    ]
    golden = Path(__file__).with_name("tiny_run.txt")
    assert text == golden.read_text(encoding="utf-8").splitlines()
