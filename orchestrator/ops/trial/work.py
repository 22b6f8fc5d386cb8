"""Cases of the alerts about transitions, guards, retries, models and tools."""

from __future__ import annotations

from orchestrator.ops.trial.case import AGENT, LOOP, Case, firing, firing_there, series, spread

_EDGE = LOOP | {"from_state": "await_llm", "event": "llm_response"}
_MODEL = AGENT | {"provider": "openai", "model": "m"}
_LLM = LOOP | {"operation": "llm"}


def failed(values: str, reason: str) -> tuple[str, str]:
    """Return events that did not commit."""
    return series("orchestrator_transition_failures_total", values, reason=reason, **_EDGE)


def done(values: str) -> tuple[str, str]:
    """Return transitions."""
    return series("orchestrator_transitions_total", values, to_state="evaluate_response", **_EDGE)


def tool(values: str, outcome: str, name: str = "search") -> tuple[str, str]:
    """Return tool calls."""
    return series("orchestrator_tool_calls_total", values, tool=name, outcome=outcome, **AGENT)


def answers(values: str, outcome: str) -> tuple[str, str]:
    """Return requests to a model."""
    return series("orchestrator_llm_requests_total", values, outcome=outcome, **_MODEL)


def took(fast: str, count: str) -> list[tuple[str, str]]:
    """Return requests by their time: up to 40.96 s, and all of them."""
    return [
        *spread("llm_request_duration_seconds", fast, "40.96", "81.92", count, **_MODEL),
        series("orchestrator_llm_request_duration_seconds_count", count, **_MODEL),
    ]


def attempts(all_: str, again: str) -> list[tuple[str, str]]:
    """Return attempts and those among them that were retries."""
    return [
        series("orchestrator_attempts_total", all_, **_LLM),
        series("orchestrator_retries_total", again, reason="rate_limited", **_LLM),
    ]


def given_up(all_: str, lost: str) -> list[tuple[str, str]]:
    """Return attempts and how many calls were given up."""
    return [
        series("orchestrator_attempts_total", all_, **_LLM),
        series("orchestrator_retries_exhausted_total", lost, **_LLM),
    ]


WORK_CASES = (
    Case(
        "TransitionFailureRatioHigh",
        "one event in ten fails",
        [done("0+90x30"), failed("0+10x30", "callback_error")],
        "20m",
        [firing("10%", **LOOP)],
    ),
    Case(
        "TransitionFailureRatioHigh",
        "one in a hundred",
        [done("0+99x30"), failed("0+1x30", "callback_error")],
        "20m",
    ),
    Case(
        "TransitionFailureRatioHigh",
        "what hooks refused and people cancelled is no failure",
        [
            done("0+50x30"),
            failed("0+25x30", "refused"),
            failed("0+25x30", "cancelled"),
            failed("0x30", "callback_error"),
        ],
        "20m",
    ),
    Case(
        "TransitionFailureRatioHigh",
        "too little happens for a share to mean anything",
        [
            done("0 0 0 1 1 1 1 1 1 2 2 2 2 2 2 2"),
            failed("0 0 0 1 1 1 1 1 1 2 2 2 2 2 2 2", "callback_error"),
        ],
        "12m",
    ),
    Case(
        "UndeclaredTransition",
        "the series is born with its first event",
        [failed("_x5 1x40", "undeclared_edge")],
        "8m",
        [firing_there(reason="undeclared_edge", **_EDGE)],
    ),
    Case(
        "UndeclaredTransition",
        "a further event on a series that was there",
        [failed("1x30 2x5", "unknown_event")],
        "33m",
        [firing_there(reason="unknown_event", **_EDGE)],
    ),
    Case("UndeclaredTransition", "long ago", [failed("1x80", "undeclared_edge")], "70m"),
    Case("UndeclaredTransition", "other failures", [failed("0+5x30", "callback_error")], "20m"),
    Case(
        "GuardErrors",
        "a guard raised once",
        [
            series(
                "orchestrator_guard_evaluations_total",
                "0x5 1x30",
                **LOOP,
                guard="may_continue",
                result="error",
            )
        ],
        "8m",
        [firing(**LOOP, guard="may_continue", result="error")],
    ),
    Case(
        "GuardErrors",
        "to say no is what guards are for",
        [
            series(
                "orchestrator_guard_evaluations_total",
                "0+5x30",
                **LOOP,
                guard="may_continue",
                result="deny",
            ),
            series(
                "orchestrator_guard_evaluations_total",
                "0x30",
                **LOOP,
                guard="may_continue",
                result="error",
            ),
        ],
        "8m",
    ),
    Case(
        "RetryStorm",
        "half of the attempts are retries",
        attempts("0+60x30", "0+30x30"),
        "20m",
        [firing("50%", **_LLM)],
    ),
    Case("RetryStorm", "one in ten", attempts("0+60x30", "0+6x30"), "20m"),
    Case("RetryStorm", "two attempts an hour", attempts("0x12 2x30", "0x12 1x30"), "16m"),
    Case("RetryStorm", "it has only begun", attempts("0x10 0+60x30", "0x10 0+30x30"), "13m"),
    Case(
        "RetriesExhausted",
        "one attempt in ten was the last",
        given_up("0+60x30", "0+6x30"),
        "20m",
        [firing("10%", **_LLM)],
    ),
    Case("RetriesExhausted", "one in a hundred", given_up("0+100x30", "0+1x30"), "20m"),
    Case("RetriesExhausted", "two attempts an hour", given_up("0x12 2x30", "0x12 1x30"), "20m"),
    Case(
        "ToolErrorRatioHigh",
        "half of the calls fail",
        [tool("0+30x30", "ok"), tool("0+20x30", "error"), tool("0+10x30", "timeout")],
        "20m",
        [firing("50%", tool="search", **AGENT)],
    ),
    Case(
        "ToolErrorRatioHigh",
        "calls of tools that do not exist have their own alert",
        [tool("0+30x30", "error", "_unregistered"), tool("0+30x30", "ok")],
        "20m",
    ),
    Case("ToolErrorRatioHigh", "one in ten fails", [tool("0+27x30", "ok"), tool("0+3x30", "error")], "20m"),
    Case(
        "ToolErrorRatioHigh",
        "calls that people refused did not fail",
        [tool("0+10x30", "ok"), tool("0+30x30", "denied"), tool("0x30", "error")],
        "20m",
    ),
    Case(
        "ToolErrorRatioHigh",
        "one call a minute, and all fail",
        [tool("0x40", "ok"), tool("0+1x40", "error")],
        "30m",
        [firing("100%", tool="search", **AGENT)],
    ),
    Case(
        "ToolErrorRatioHigh",
        "two calls an hour",
        [tool("0x12 1x30", "ok"), tool("0x12 1x30", "error")],
        "20m",
    ),
    Case(
        "UnregisteredToolCalls",
        "a fifth of the calls is invented",
        [tool("0+48x60", "ok"), tool("0+12x60", "invalid_args", "_unregistered")],
        "45m",
        [firing("20%", **AGENT)],
    ),
    Case(
        "UnregisteredToolCalls",
        "one in a hundred",
        [tool("0+99x60", "ok"), tool("0+1x60", "invalid_args", "_unregistered")],
        "45m",
    ),
    Case(
        "UnregisteredToolCalls",
        "two calls an hour",
        [tool("0x25 1x40", "ok"), tool("0x25 1x40", "invalid_args", "_unregistered")],
        "38m",
    ),
    Case(
        "LLMErrorRatioHigh",
        "every second request fails",
        [answers("0+30x30", "ok"), answers("0+30x30", "server_error")],
        "20m",
        [firing("50%", **_MODEL)],
    ),
    Case("LLMErrorRatioHigh", "one in ten", [answers("0+27x30", "ok"), answers("0+3x30", "timeout")], "20m"),
    Case(
        "LLMErrorRatioHigh",
        "cancelled by us",
        [answers("0+30x30", "ok"), answers("0+60x30", "cancelled"), answers("0x30", "timeout")],
        "20m",
    ),
    Case(
        "LLMErrorRatioHigh",
        "one request a minute, and all fail",
        [answers("0x40", "ok"), answers("0+1x40", "auth")],
        "30m",
        [firing("100%", **_MODEL)],
    ),
    Case(
        "LLMErrorRatioHigh",
        "two requests an hour",
        [answers("0x12 1x30", "ok"), answers("0x12 1x30", "auth")],
        "16m",
    ),
    Case(
        "LLMLatencyHigh",
        "one in ten takes longer than 41 seconds",
        took("0+54x60", "0+60x60"),
        "40m",
        [firing("10%", le="40.96", **_MODEL)],
    ),
    Case("LLMLatencyHigh", "two requests an hour", took("0x60", "0x12 2x40"), "22m"),
    Case("LLMLatencyHigh", "nearly all are quick", took("0+59x60", "0+60x60"), "40m"),
)
