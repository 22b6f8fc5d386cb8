"""The GenAI metrics of OpenTelemetry: tokens and duration of model requests, duration of tool calls.

They are an option for a host whose dashboards use these names. The metrics of `Metrics` have more labels and feed the
alerts and dashboards of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.kernel.record import LLMCall, ToolExecution
from orchestrator.telemetry.semconv import Conventions

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

_TOKENS = tuple(4**power for power in range(14))
_SECONDS = tuple(0.01 * 2**power for power in range(14))
"""Boundaries of the buckets as the conventions advise."""


class ClientMetrics:
    """Records the facts about calls with a meter."""

    def __init__(self, meter: Meter, names: Conventions) -> None:
        self._names = names
        self._tokens = meter.create_histogram(
            names.token_usage,
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._duration = meter.create_histogram(
            names.duration, "s", "GenAI operation duration.", explicit_bucket_boundaries_advisory=_SECONDS
        )
        self._first_chunk = meter.create_histogram(
            names.first_chunk_time,
            "s",
            "Time to receive the first chunk of a streamed answer.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def request(self, fact: LLMCall, provider: str | None, error: str | None) -> None:
        """Record one attempt of a request to a model."""
        names = self._names
        labels = {names.operation: names.llm, names.model: fact.model, names.provider: provider or "_unknown"}
        self._record_duration(labels, fact.seconds, error)
        for kind, tokens in (("input", fact.input_tokens), ("output", fact.output_tokens)):
            if tokens:
                self._tokens.record(tokens, {**labels, names.token_type: kind})
        if fact.first_token is not None:
            self._first_chunk.record(fact.first_token, labels)

    def tool(self, fact: ToolExecution, error: str | None) -> None:
        """Record one tool call."""
        names = self._names
        self._record_duration({names.operation: names.tool, names.tool_name: fact.tool}, fact.seconds, error)

    def _record_duration(self, labels: dict[str, Any], seconds: float, error: str | None) -> None:
        extra = {} if error is None else {self._names.error: error}
        self._duration.record(seconds, {**labels, **extra})
