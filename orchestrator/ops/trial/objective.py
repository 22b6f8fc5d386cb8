"""Cases of the two objectives: the share of bad runs, and the share of late answers."""

from __future__ import annotations

from orchestrator.ops.trial.case import LOOP, Case, Firing, firing, series


def ended(outcome: str, values: str, reason: str = "none") -> tuple[str, str]:
    """Return runs of one outcome."""
    return series("orchestrator_runs_completed_total", values, **LOOP, outcome=outcome, reason=reason)


def refused(values: str, reason: str = "journal_error") -> tuple[str, str]:
    """Return runs that were refused before they existed."""
    return series("orchestrator_runs_rejected_total", values, **LOOP, reason=reason)


def slow(values: str) -> tuple[str, str]:
    """Return answers that took longer than the objective of their agent."""
    return series("orchestrator_runs_slow_total", values, **LOOP)


def _burning(value: str, rule: int) -> Firing:
    """Return the alert of one pair of windows."""
    return Firing(firing(**LOOP).labels, value, rule)


_BURN = "RunErrorBudgetBurn"
_SLOW = "RunLatencyBudgetBurn"
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

HIDDEN_CASES = (
    Case(
        _BURN,
        "runs that make no progress",
        [
            ended("completed", "0+8x80"),
            ended("failed", "0x80"),
            ended("no_progress", "0+2x80", "stalled"),
        ],
        "20m",
        [_burning("20%", 0), _burning("20%", 1)],
    ),
    Case(
        _BURN,
        "submissions that a full disk refuses, and no run",
        [ended("completed", "0x80"), ended("failed", "0x80"), refused("0+2x80")],
        "20m",
        [_burning("100%", 0), _burning("100%", 1)],
    ),
    Case(
        _BURN,
        "limits cut off more than the usual tenth of the runs",
        [
            ended("completed", "0+6x80"),
            ended("failed", "0x80"),
            ended("budget_exceeded", "0+4x80", "max_iterations"),
        ],
        "20m",
        [_burning("30%", 0), _burning("30%", 1)],
    ),
    Case(
        _BURN,
        "limits cut off a tenth, as they always do",
        [
            ended("completed", "0+90x80"),
            ended("failed", "0x80"),
            ended("budget_exceeded", "0+10x80", "max_iterations"),
        ],
        "60m",
    ),
    Case(
        _BURN,
        "one run a minute, and all fail",
        [ended("completed", "0x80"), ended("failed", "0+1x80", "llm_error")],
        "30m",
        [_burning("100%", 0), _burning("100%", 1)],
    ),
    Case(
        _BURN,
        "one agent fails all of its runs at 0.9 % of the traffic",
        [
            series(
                "orchestrator_runs_completed_total",
                "0+991x80",
                **LOOP | {"agent": "big"},
                outcome="completed",
            ),
            series("orchestrator_runs_completed_total", "0x80", **LOOP | {"agent": "big"}, outcome="failed"),
            ended("completed", "0x80"),
            ended("failed", "0+9x80", "llm_error"),
        ],
        "20m",
        [_burning("100%", 0), _burning("100%", 1)],
    ),
    Case(
        _BURN,
        "a journal that is served alone has no refusals",
        [ended("completed", "0+8x80"), ended("failed", "0+2x80", "llm_error")],
        "30m",
        [_burning("20%", 0), _burning("20%", 1)],
    ),
)

LATENCY_CASES = (
    Case(
        _SLOW,
        "nine of ten answers are late",
        [ended("completed", "0+10x80"), slow("0+9x80")],
        "20m",
        [_burning("90%", 0), _burning("90%", 1)],
    ),
    Case(
        _SLOW,
        "a third is late: no page within an hour, the slow page",
        [ended("completed", "0+9x100"), slow("0+3x100")],
        "40m",
        [_burning("33.33%", 1)],
    ),
    Case(
        _SLOW,
        "one in five makes the tickets",
        [ended("completed", "0+100x107"), slow("0+20x107")],
        "26h",
        [_burning("20%", 2), _burning("20%", 3)],
        "15m",
    ),
    Case(
        _SLOW,
        "one in ten makes the ticket of three days only",
        [ended("completed", "0+100x107"), slow("0+10x107")],
        "26h",
        [_burning("10%", 3)],
        "15m",
    ),
    Case(
        _SLOW,
        "one in fifty is within the objective",
        [ended("completed", "0+100x107"), slow("0+2x107")],
        "26h",
        step="15m",
    ),
    Case(
        _SLOW,
        "a burst that is over leaves the slow page and no fast one",
        [ended("completed", "0+10x90"), slow("0+9x40 360+0x50")],
        "50m",
        [_burning("72%", 1)],
    ),
    Case(_SLOW, "three answers say nothing", [ended("completed", "0x5 3x60"), slow("0x5 3x60")], "10m"),
    Case(
        _SLOW,
        "three answers a day say nothing",
        [ended("completed", "0x60 1x27 2x20"), slow("0x60 1x27 2x20")],
        "26h",
        step="15m",
    ),
    Case(_SLOW, "an agent without an objective", [ended("completed", "0+10x80")], "30m"),
)

OBJECTIVE_CASES = (*BURN_CASES, *HIDDEN_CASES, *LATENCY_CASES)
