"""Cases of the alerts about runs."""

from __future__ import annotations

from orchestrator.ops.trial.case import (
    AGENT,
    ID,
    INSTANCE,
    LOOP,
    Case,
    buckets,
    firing,
    firing_of_journal,
    firing_there,
    journal_info,
    series,
)
from orchestrator.ops.trial.objective import OBJECTIVE_CASES, ended

_STATE = LOOP | {"state": "await_llm"}
_ENTERED = "orchestrator_oldest_run_state_entered_timestamp_seconds"
_LIMIT = "orchestrator_state_timeout_seconds"
_BESIDE = "b:9464"
"""Another process with the same journal."""


def in_journal(
    values: str, status: str = "orphaned", reason: str = "none", instance: str = INSTANCE
) -> tuple[str, str]:
    """Return runs of a journal that have not ended."""
    where = {**LOOP, "status": status, "reason": reason, "instance": instance}
    return series("orchestrator_journal_runs", values, journal=ID, **where)


def parked(reason: str, machine: str = "llm_loop", values: str = "0x130") -> tuple[str, str]:
    """Return the time of the oldest parked run of a journal."""
    where = {**AGENT, "machine": machine, "status": "parked", "reason": reason}
    return series("orchestrator_journal_oldest_update_timestamp_seconds", values, journal=ID, **where)


def rolled_back(values: str, outcome: str = "failed") -> tuple[str, str]:
    """Return rollbacks of effects."""
    return series("orchestrator_rollbacks_total", values, **LOOP, outcome=outcome)


def _share(near: str, count: str) -> list[tuple[str, str]]:
    where = LOOP | {"budget": "input_tokens"}
    return [
        *buckets("budget_consumed_ratio", {"0.9": near, "+Inf": count}, **where),
        series("orchestrator_budget_consumed_ratio_count", count, **where),
    ]


_TOKENS = LOOP | {"provider": "openai", "model": "m", "direction": "input"}

_NIGHT, _DAY = 96, 96  # steps of five minutes: eight hours each, and eight more of the night
_OFFICE = (
    f"0x{_NIGHT} 0+300000x{_DAY} {300000 * _DAY}x{2 * _NIGHT}"
    f" {300000 * _DAY}+300000x{_DAY} {600000 * _DAY}x{2 * _NIGHT} {600000 * _DAY}+300000x{_DAY}"
)
"""Tokens of an agent that works in office hours."""

RUN_CASES = (
    *OBJECTIVE_CASES,
    Case(
        "RunStuck",
        "in a state for longer than one and a half times its limit",
        [series(_ENTERED, "0x30", **_STATE), series(_LIMIT, "120x30", **_STATE)],
        "10m",
        [firing_there("10m 0s", **_STATE)],
    ),
    Case(
        "RunStuck",
        "held by keep_firing_for while one scrape misses it",
        [series(_ENTERED, "0x10 600+60x20", **_STATE), series(_LIMIT, "120x30", **_STATE)],
        "13m",
        [firing_there("10m 0s", **_STATE)],
    ),
    Case(
        "RunStuck",
        "the engine still has time to end it itself",
        [series(_ENTERED, "0x30", **_STATE), series(_LIMIT, "600x30", **_STATE)],
        "14m",
    ),
    Case(
        "RunAgingWithoutTimeout",
        "two hours in a state that declares no limit",
        [series(_ENTERED, "0x130", **_STATE)],
        "2h",
        [firing_there("2h 0m 0s", **_STATE)],
    ),
    Case(
        "RunAgingWithoutTimeout",
        "states with a limit have an alert of their own",
        [series(_ENTERED, "0x130", **_STATE), series(_LIMIT, "120x130", **_STATE)],
        "2h",
    ),
    Case("RunAgingWithoutTimeout", "half an hour old", [series(_ENTERED, "0x130", **_STATE)], "30m"),
    Case(
        "RunOverdue",
        "the deadline has passed by a fifth",
        [
            series("orchestrator_oldest_run_started_timestamp_seconds", "0x60", **LOOP),
            series("orchestrator_run_timeout_seconds", "600x60", **LOOP),
        ],
        "20m",
        [firing_there("20m 0s", **LOOP)],
    ),
    Case(
        "RunOverdue",
        "late, but not by a fifth",
        [
            series("orchestrator_oldest_run_started_timestamp_seconds", "0x60", **LOOP),
            series("orchestrator_run_timeout_seconds", "1200x60", **LOOP),
        ],
        "22m",
    ),
    Case(
        "EngineStalled",
        "active runs and no transition for longer than any state may last",
        [
            series("orchestrator_last_transition_timestamp_seconds", "0x60", **LOOP),
            series(_LIMIT, "300x60", **_STATE),
            series(_LIMIT, "60x60", **LOOP, state="init"),
            series("orchestrator_runs_active", "2x60", **_STATE),
        ],
        "20m",
        [firing_there("20m 0s", **LOOP)],
    ),
    Case(
        "EngineStalled",
        "nothing to do is no stall",
        [
            series("orchestrator_last_transition_timestamp_seconds", "0x60", **LOOP),
            series(_LIMIT, "300x60", **_STATE),
            series("orchestrator_runs_active", "0x60", **_STATE),
        ],
        "20m",
    ),
    Case(
        "EngineStalled",
        "a state may last that long",
        [
            series("orchestrator_last_transition_timestamp_seconds", "0x60", **LOOP),
            series(_LIMIT, "900x60", **_STATE),
            series("orchestrator_runs_active", "2x60", **_STATE),
        ],
        "20m",
    ),
    Case(
        "ApprovalWaiting",
        "a question has been open for two hours, in the journal of two processes",
        [
            parked("approval", values="60x130"),
            series(
                "orchestrator_journal_oldest_update_timestamp_seconds",
                "60x130",
                **{"instance": _BESIDE, **LOOP, "journal": ID, "status": "parked", "reason": "approval"},
            ),
            journal_info(),
            journal_info(instance=_BESIDE),
        ],
        "2h",
        [firing_of_journal("1h 59m 0s", **LOOP, reason="approval")],
    ),
    Case(
        "ApprovalWaiting",
        "questions of a planner have been open for two hours",
        [parked("questions", "ralph"), journal_info()],
        "2h",
        [firing_of_journal("2h 0m 0s", machine="ralph", **AGENT, reason="questions")],
    ),
    Case(
        "ApprovalWaiting",
        "half an hour is no reason to ask",
        [parked("approval")],
        "30m",
    ),
    Case(
        "ApprovalWaiting",
        "a paused run has no question",
        [parked("paused")],
        "2h",
    ),
    Case(
        "ApprovalWaiting",
        "a running run and an orphan have no question",
        [
            series(
                "orchestrator_journal_oldest_update_timestamp_seconds",
                "0x130",
                **LOOP,
                journal=ID,
                status=status,
                reason="none",
            )
            for status in ("running", "orphaned")
        ],
        "2h",
    ),
    Case(
        "RecoveryLoop",
        "four starts within the hour, with runs taken up",
        [
            series("process_start_time_seconds", "1x5 2x5 3x5 4x20"),
            series("orchestrator_recoveries_total", "3x40", **LOOP, outcome="resumed"),
        ],
        "25m",
        [firing_there("3", **LOOP)],
    ),
    Case(
        "RecoveryLoop",
        "a run without progress",
        [in_journal("1x10", "parked", "poison"), in_journal("1x10", "parked", "poison", _BESIDE)],
        "5m",
        [firing_of_journal("1", **LOOP)],
    ),
    Case(
        "RecoveryLoop",
        "one deployment takes up everything that was under way",
        [
            series("process_start_time_seconds", "1x10 2x30"),
            series("orchestrator_recoveries_total", "0x10 250x30", **LOOP, outcome="resumed"),
            in_journal("0x40", "parked", "poison"),
            in_journal("9x40", "parked", "approval"),
        ],
        "30m",
    ),
    Case(
        "RecoveryLoop",
        "starts without runs to resume have another alert",
        [
            series("process_start_time_seconds", "1x5 2x5 3x5 4x20"),
            series("orchestrator_recoveries_total", "0x40", **LOOP, outcome="resumed"),
        ],
        "25m",
    ),
    Case(
        "RunsOrphaned",
        "two runs without an owner, in the journal of two processes",
        [
            in_journal("2x30"),
            in_journal("2x30", instance=_BESIDE),
            journal_info(),
            journal_info(instance=_BESIDE),
        ],
        "20m",
        [firing_of_journal("2", **LOOP)],
    ),
    Case(
        "RunsOrphaned",
        "a process ends and another one watches its journal",
        [in_journal("2x8 _x22"), in_journal("_x5 2x25", instance=_BESIDE), journal_info(instance=_BESIDE)],
        "20m",
        [firing_of_journal("2", **LOOP)],
    ),
    Case("RunsOrphaned", "a deployment that takes them up", [in_journal("0x5 9x10 0x20")], "25m"),
    Case(
        "RunsOrphaned",
        "held by keep_firing_for while one look misses them",
        [in_journal("2x20 0x2 2x10"), journal_info()],
        "22m",
        [firing_of_journal("2", **LOOP)],
    ),
    Case(
        "RunsOrphaned",
        "runs under way, and those that wait for people",
        [in_journal("7x30", "running"), in_journal("3x30", "parked", "approval"), in_journal("0x30")],
        "20m",
    ),
    Case(
        "RollbackFailed",
        "one failure is enough",
        [rolled_back("0x20 1x30")],
        "25m",
        [firing(**LOOP, outcome="failed")],
    ),
    Case(
        "RollbackFailed",
        "a process that took up its runs before it was scraped",
        [rolled_back("_x5 1x30")],
        "10m",
        [firing(**LOOP, outcome="failed")],
    ),
    Case("RollbackFailed", "long ago", [rolled_back("1x50")], "40m"),
    Case(
        "RollbackFailed",
        "rollbacks that worked",
        [rolled_back("0+1x30", "undone"), rolled_back("0x30")],
        "10m",
    ),
    Case(
        "BudgetExceededHigh",
        "a third of the runs is cut off",
        [ended("completed", "0+4x60"), ended("budget_exceeded", "0+2x60", "max_iterations")],
        "40m",
        [firing("33.33%", **LOOP)],
    ),
    Case(
        "BudgetExceededHigh",
        "one in fifty is policy at work",
        [ended("completed", "0+49x60"), ended("budget_exceeded", "0+1x60", "max_iterations")],
        "40m",
    ),
    Case(
        "BudgetExceededHigh",
        "three runs say nothing",
        [ended("completed", "0x20 1x40"), ended("budget_exceeded", "0x20 2x40", "time")],
        "45m",
    ),
    Case(
        "BudgetHeadroomLow",
        "half of the runs use more than nine tenths",
        _share("0+2x120", "0+4x120"),
        "100m",
        [firing("50%", **LOOP, budget="input_tokens")],
    ),
    Case(
        "BudgetHeadroomLow",
        "one in ten comes near",
        _share("0+9x120", "0+10x120"),
        "100m",
    ),
    Case(
        "BudgetHeadroomLow",
        "two runs say nothing",
        _share("0x120", "0x20 2x100"),
        "60m",
    ),
    Case(
        "TokenBurnAnomaly",
        "ten times yesterday's tokens",
        [series("orchestrator_llm_tokens_total", "0+30000x60 1800000+300000x24", **_TOKENS)],
        "6h",
        [firing("1k", **LOOP)],
        "5m",
    ),
    Case(
        "TokenBurnAnomaly",
        "as ever",
        [series("orchestrator_llm_tokens_total", "0+300000x84", **_TOKENS)],
        "6h",
        step="5m",
    ),
    Case(
        "TokenBurnAnomaly",
        "ten times next to nothing",
        [series("orchestrator_llm_tokens_total", "0+30x60 1800+300x24", **_TOKENS)],
        "6h",
        step="5m",
    ),
    Case(
        "TokenBurnAnomaly",
        "steady office hours, on the third morning",
        [series("orchestrator_llm_tokens_total", _OFFICE, **_TOKENS)],
        "58h",
        step="5m",
    ),
)
