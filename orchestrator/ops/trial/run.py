"""Cases of the alerts about runs."""

from __future__ import annotations

from orchestrator.ops.trial.case import AGENT, LOOP, Case, Firing, buckets, firing, firing_there, series

_STATE = LOOP | {"state": "await_llm"}
_ENTERED = "orchestrator_oldest_run_state_entered_timestamp_seconds"
_LIMIT = "orchestrator_state_timeout_seconds"
_OLDEST_PARKED = "orchestrator_oldest_parked_timestamp_seconds"


def ended(outcome: str, values: str, reason: str = "none") -> tuple[str, str]:
    """Return runs of one outcome."""
    return series("orchestrator_runs_completed_total", values, **LOOP, outcome=outcome, reason=reason)


def in_journal(values: str, status: str = "orphaned") -> tuple[str, str]:
    """Return runs of a journal that have not ended."""
    return series("orchestrator_journal_runs", values, **LOOP, status=status)


def rolled_back(values: str, outcome: str = "failed") -> tuple[str, str]:
    """Return rollbacks of effects."""
    return series("orchestrator_rollbacks_total", values, **LOOP, outcome=outcome)


def _share(near: str, count: str) -> list[tuple[str, str]]:
    where = LOOP | {"budget": "input_tokens"}
    return [
        *buckets("budget_consumed_ratio", {"0.9": near, "+Inf": count}, **where),
        series("orchestrator_budget_consumed_ratio_count", count, **where),
    ]


def _burning(value: str, rule: int) -> Firing:
    """Return the alert of one pair of windows."""
    return Firing(firing(**LOOP).labels, value, rule)


_BURN = "RunErrorBudgetBurn"
_TOKENS = LOOP | {"provider": "openai", "model": "m", "direction": "input"}

BURN_CASES = (
    Case(
        _BURN,
        "one run in five fails: both pages, and soon the tickets",
        [ended("completed", "0+8x80"), ended("failed", "0+2x80", "llm_error")],
        "20m",
        [_burning("20%", 0), _burning("20%", 1)],
    ),
    Case(
        _BURN,
        "a burst that is over leaves the slow page and no fast one",
        [ended("completed", "0+8x90"), ended("failed", "0+2x40 80+0x50", "llm_error")],
        "60m",
        [_burning("14.29%", 1)],
    ),
    Case(
        _BURN,
        "what people stopped does not count, neither for nor against",
        [
            ended("completed", "0+99x80"),
            ended("failed", "0+1x80", "llm_error"),
            ended("cancelled", "0+500x80", "caller"),
            ended("rejected", "0+500x80", "operator"),
        ],
        "60m",
    ),
    Case(
        _BURN,
        "one failed run among three is no page",
        [ended("completed", "0+0x60 0 1 2 2+0x60"), ended("failed", "0+0x60 0 0 1 1+0x60", "internal")],
        "66m",
    ),
    Case(
        _BURN,
        "half an hour of every tenth failing is no fast page",
        [ended("completed", "0+9x90"), ended("failed", "0+1x90", "llm_error")],
        "12m",
    ),
    Case(
        _BURN,
        "a slow burn of four in a hundred makes the ticket of a day",
        [ended("completed", "0+96x107"), ended("failed", "0+4x107", "tool_error")],
        "26h",
        [_burning("4%", 2), _burning("4%", 3)],
        "15m",
    ),
    Case(
        _BURN,
        "twice the objective makes the ticket of three days only",
        [ended("completed", "0+98x107"), ended("failed", "0+2x107", "tool_error")],
        "26h",
        [_burning("2%", 3)],
        "15m",
    ),
    Case(
        _BURN,
        "within the objective",
        [ended("completed", "0+995x107"), ended("failed", "0+5x107", "tool_error")],
        "26h",
        step="15m",
    ),
    Case(
        _BURN,
        "three runs a day are too few for a ticket",
        [ended("completed", "0x60 1x47"), ended("failed", "0x60 1x27 2x20", "internal")],
        "26h",
        step="15m",
    ),
)

RUN_CASES = (
    *BURN_CASES,
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
        "a question has been open for two hours",
        [series(_OLDEST_PARKED, "0x130", **LOOP, reason="approval")],
        "2h",
        [firing("2h 0m 0s", **LOOP, reason="approval")],
    ),
    Case(
        "ApprovalWaiting",
        "questions of a planner have been open for two hours",
        [series(_OLDEST_PARKED, "0x130", machine="ralph", **AGENT, reason="questions")],
        "2h",
        [firing("2h 0m 0s", machine="ralph", **AGENT, reason="questions")],
    ),
    Case(
        "ApprovalWaiting",
        "half an hour is no reason to ask",
        [series(_OLDEST_PARKED, "0x130", **LOOP, reason="approval")],
        "30m",
    ),
    Case(
        "ApprovalWaiting",
        "a paused run has no question",
        [series(_OLDEST_PARKED, "0x130", **LOOP, reason="paused")],
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
        [series("orchestrator_runs_parked", "1x10", **LOOP, reason="poison")],
        "5m",
        [firing("1", **LOOP)],
    ),
    Case(
        "RecoveryLoop",
        "one deployment takes up everything that was under way",
        [
            series("process_start_time_seconds", "1x10 2x30"),
            series("orchestrator_recoveries_total", "0x10 250x30", **LOOP, outcome="resumed"),
            series("orchestrator_runs_parked", "0x40", **LOOP, reason="poison"),
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
        "two runs without an owner",
        [in_journal("2x30")],
        "20m",
        [firing_there("2", **LOOP, status="orphaned")],
    ),
    Case("RunsOrphaned", "a deployment that takes them up", [in_journal("0x5 9x10 0x20")], "25m"),
    Case(
        "RunsOrphaned",
        "held by keep_firing_for while one look misses them",
        [in_journal("2x20 0x2 2x10")],
        "22m",
        [firing_there("2", **LOOP, status="orphaned")],
    ),
    Case(
        "RunsOrphaned",
        "runs under way, and those that wait for people",
        [in_journal("7x30", "running"), in_journal("3x30", "parked"), in_journal("0x30")],
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
)
