"""Store the previous span of a run that is resumed in a new trace: W3C `traceparent` by run id."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from orchestrator.telemetry.semconv import LINKED

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext


class RecentRuns(dict[str, str]):
    """The default of `links`: the last runs of this process."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, run_id: str, traceparent: str) -> None:
        """Store a run, and drop the oldest one beyond the limit."""
        self.pop(run_id, None)
        super().__setitem__(run_id, traceparent)
        while len(self) > self._most:
            self.pop(next(iter(self)), None)


class RunLinks:
    """The spans before of runs, in a mapping of the host. An exception of the mapping loses only the link."""

    def __init__(self, spans: MutableMapping[str, str], api: Any) -> None:
        self._spans = spans
        self._api = api

    def of(self, run_id: str) -> list[Any]:
        """Return the link to the span before of a run; empty without one."""
        try:
            context = parsed(self._spans.get(run_id), self._api)
        except Exception:  # noqa: BLE001 - the host's mapping may raise anything; a link is not worth an error
            return []
        return [] if context is None else [self._api.Link(context, {LINKED: "resumed"})]

    def remember(self, run_id: str, context: SpanContext) -> None:
        """Store the span of a run."""
        if context.is_valid:
            with suppress(Exception):
                self._spans[run_id] = written(context)

    def forget(self, run_id: str) -> None:
        """Drop the span of a run that is not resumed any more."""
        with suppress(Exception):
            self._spans.pop(run_id, None)


def written(context: SpanContext) -> str:
    """Return a span context as a traceparent."""
    flags = "01" if context.trace_flags.sampled else "00"
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags}"


def parsed(traceparent: str | None, api: Any) -> SpanContext | None:
    """Return the span context of a W3C traceparent, or None. Raises ValueError for an invalid one."""
    if traceparent is None:
        return None
    version, trace_id, span_id, flags = traceparent.split("-")
    if version != "00":
        return None
    context: SpanContext = api.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=api.TraceFlags(int(flags, 16))
    )
    return context if context.is_valid else None
