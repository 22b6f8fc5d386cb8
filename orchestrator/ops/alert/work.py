"""Alerts about the parts of runs: transitions, guards, retries, models, tools."""

from __future__ import annotations

from orchestrator.ops.rule import Alert, AlertSeverity

_FAILED = (
    "sum without (instance, from_state, event, reason)"
    ' (rate(orchestrator_transition_failures_total{reason!~"refused|cancelled"}[5m]))'
)
_DONE = "sum without (instance, from_state, event, to_state) (rate(orchestrator_transitions_total[5m]))"
_UNDECLARED = 'orchestrator_transition_failures_total{reason=~"undeclared_edge|unknown_event"}'
_REGISTERED = 'tool!="_unregistered"'  # names that a model invents have an alert of their own

WORK_ALERTS = (
    Alert(
        name="TransitionFailureRatioHigh",
        severity=AlertSeverity.WARNING,
        expr=(
            f"({_FAILED}\n  / ({_FAILED}\n    + {_DONE})) > <failed_events>\n"
            f"and ({_FAILED} + {_DONE}) > <least_rate>"
        ),
        wait="5m",
        summary="Many events of {{ $labels.machine }} (agent {{ $labels.agent }}) fail.",
        description=(
            "{{ $value | humanizePercentage }} of the events of {{ $labels.machine }} were not committed, or a hook"
            " raised."
        ),
    ),
    Alert(
        name="UndeclaredTransition",
        severity=AlertSeverity.WARNING,
        # Such a series appears with its first event, and increase() does not see a first value: hence the second arm.
        expr=(f"increase({_UNDECLARED}[15m]) > 0\nor ({_UNDECLARED} > 0\n  unless {_UNDECLARED} offset 15m)"),
        keep="15m",
        summary="{{ $labels.machine }} (agent {{ $labels.agent }}) got an event that its table does not allow.",
        description=(
            "Event {{ $labels.event }} in {{ $labels.from_state }} of {{ $labels.machine }}: {{ $labels.reason }}."
            " Code and table do not match."
        ),
    ),
    Alert(
        name="GuardErrors",
        severity=AlertSeverity.WARNING,
        expr='sum without (instance) (increase(orchestrator_guard_evaluations_total{result="error"}[10m])) > 0',
        keep="10m",
        summary="Guard {{ $labels.guard }} of {{ $labels.machine }} (agent {{ $labels.agent }}) raised.",
        description=(
            "Guard {{ $labels.guard }} raised an exception. The event counts as refused, and the run fails."
        ),
    ),
    Alert(
        name="RetryStorm",
        severity=AlertSeverity.WARNING,
        expr=(
            "(sum without (instance, reason) (rate(orchestrator_retries_total[5m]))\n"
            "  / sum without (instance) (rate(orchestrator_attempts_total[5m]))) > <retries>\n"
            "and sum without (instance) (rate(orchestrator_attempts_total[5m])) > <least_rate>"
        ),
        wait="5m",
        keep="5m",
        summary="Many {{ $labels.operation }} calls of {{ $labels.machine }} (agent {{ $labels.agent }}) are retries.",
        description="{{ $value | humanizePercentage }} of the {{ $labels.operation }} attempts are retries.",
    ),
    Alert(
        name="RetriesExhausted",
        severity=AlertSeverity.WARNING,
        expr=(
            "(sum without (instance) (rate(orchestrator_retries_exhausted_total[10m]))\n"
            "  / sum without (instance) (rate(orchestrator_attempts_total[10m]))) > <given_up>\n"
            "and sum without (instance) (rate(orchestrator_attempts_total[10m])) > <least_rate>"
        ),
        wait="5m",
        summary=(
            "{{ $labels.operation }} calls of {{ $labels.machine }} (agent {{ $labels.agent }}) fail after all"
            " retries."
        ),
        description=(
            "{{ $value | humanizePercentage }} of the {{ $labels.operation }} attempts were the last of their call,"
            " and failed."
        ),
    ),
    Alert(
        name="ToolErrorRatioHigh",
        severity=AlertSeverity.WARNING,
        expr=(
            "(sum without (instance, outcome)"
            f' (rate(orchestrator_tool_calls_total{{outcome=~"error|timeout", {_REGISTERED}}}[10m]))\n'
            "  / sum without (instance, outcome)"
            f' (rate(orchestrator_tool_calls_total{{outcome!="cancelled", {_REGISTERED}}}[10m]))) > <tool_errors>\n'
            "and sum without (instance, outcome) (increase(orchestrator_tool_calls_total[10m])) >= <least_calls>"
        ),
        wait="5m",
        summary="Tool {{ $labels.tool }} of agent {{ $labels.agent }} fails.",
        description="{{ $value | humanizePercentage }} of the calls of {{ $labels.tool }} failed or timed out.",
    ),
    Alert(
        name="UnregisteredToolCalls",
        severity=AlertSeverity.WARNING,
        expr=(
            "(sum without (instance, outcome, tool)"
            ' (rate(orchestrator_tool_calls_total{tool="_unregistered"}[15m]))\n'
            "  / sum without (instance, outcome, tool) (rate(orchestrator_tool_calls_total[15m])))"
            " > <invented_tools>\n"
            "and sum without (instance, outcome, tool) (rate(orchestrator_tool_calls_total[15m])) > <least_rate>"
        ),
        wait="15m",
        summary="The model of agent {{ $labels.agent }} calls tools that do not exist.",
        description="{{ $value | humanizePercentage }} of the tool calls name a tool that the agent does not have.",
    ),
    Alert(
        name="LLMErrorRatioHigh",
        severity=AlertSeverity.WARNING,
        expr=(
            "(sum without (instance, outcome)"
            ' (rate(orchestrator_llm_requests_total{outcome!~"ok|cancelled"}[10m]))\n'
            "  / sum without (instance, outcome)"
            ' (rate(orchestrator_llm_requests_total{outcome!="cancelled"}[10m]))) > <llm_errors>\n'
            "and sum without (instance, outcome) (increase(orchestrator_llm_requests_total[10m])) >= <least_calls>"
        ),
        wait="5m",
        keep="5m",
        summary="Requests of agent {{ $labels.agent }} to {{ $labels.model }} fail.",
        description=(
            "{{ $value | humanizePercentage }} of the requests to {{ $labels.model }} ({{ $labels.provider }}) failed."
        ),
    ),
    Alert(
        name="LLMLatencyHigh",
        severity=AlertSeverity.WARNING,
        # The share above the bound of a bucket is known; a quantile between two bounds is a guess.
        expr=(
            "(1 - sum without (instance)"
            ' (rate(orchestrator_llm_request_duration_seconds_bucket{le="<llm_slow_after>"}[10m]))\n'
            "  / ignoring (le) group_left ()"
            " sum without (instance) (rate(orchestrator_llm_request_duration_seconds_count[10m])))"
            " > <llm_slow>\n"
            "and ignoring (le) sum without (instance)"
            " (increase(orchestrator_llm_request_duration_seconds_count[10m])) >= <least_calls>"
        ),
        wait="10m",
        summary="{{ $labels.model }} answers agent {{ $labels.agent }} slowly.",
        description=(
            "{{ $value | humanizePercentage }} of the requests to {{ $labels.model }} take longer than"
            " {{ $labels.le }} s."
        ),
    ),
)
