"""Write the line of a transition from a template: the common parts of a run's or an edge's lines are rendered once.

A turn has four of these lines, and the template saves a third of the time of a full rendering.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import orjson

from orchestrator.kernel.clock import WHOLE
from orchestrator.kernel.record import Transition
from orchestrator.telemetry.field_name import Renamer
from orchestrator.telemetry.line import rendered, second

_TIME = b'{"ts":"%b.%06dZ",%b,"seq":%d,"iteration":%d,'
_SECONDS = b',"state_duration_s":%b'
_OVERHEAD = b',"overhead_s":%b}\n'
_MOST_EDGES = 1_000
"""Maximum edges with a stored template; the graphs of a process have some hundred."""

Edge: TypeAlias = tuple[str, str, str, str | None]
"""(source, event, dest, guard)"""


class TransitionLines:
    """Writes plain transitions from templates, of at most `most` runs; other transitions from all their `fields`.

    `common` returns the fields that all transitions of a run have, (machine, run id). With `rename` there is no
    template.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        fields: Callable[[Transition], dict[str, Any]],
        common: Callable[[tuple[str, str]], dict[str, Any]],
        most: int,
        rename: Renamer | None = None,
    ) -> None:
        self._write = write
        self._fields = fields
        self._common = common
        self._rename = rename
        self._most = most
        self._runs: dict[tuple[str, str], bytes] = {}
        self._edges: dict[Edge, bytes] = {}

    def write(self, fact: Transition) -> None:
        """Write the line of a transition: the same bytes as its fields rendered as JSON."""
        overhead, seq, iteration = fact.overhead, fact.seq, fact.iteration
        if (
            fact.verdict is not None
            or fact.internal
            or fact.tokens
            or fact.reason
            or overhead is None
            or type(seq) is not int
            or type(iteration) is not int
        ):
            self.write_fields(fact)
            return
        key = (fact.graph, fact.run_id)
        run = self._runs.get(key) or self._run(key)
        edge = (fact.source, fact.event, fact.dest, fact.guard)
        template = self._edges.get(edge) or self._edge(edge)
        text, micros = second(fact.at)
        # Rounded as `micros` does, without the call.
        dwell = orjson.dumps((fact.dwell * 1e6 + WHOLE - WHOLE) / 1e6)
        cost = orjson.dumps((overhead * 1e9 + WHOLE - WHOLE) / 1e9)
        self._write(template % (text, micros, run, seq, iteration, dwell, cost))

    def write_fields(self, fact: Transition) -> None:
        """Write the line of a transition from all its fields."""
        fields = self._fields(fact)
        self._write(rendered(fields if self._rename is None else self._rename(fields)))

    def forget(self, key: tuple[str, str]) -> None:
        """Drop the template of a run, (machine, run id)."""
        self._runs.pop(key, None)

    def _run(self, key: tuple[str, str]) -> bytes:
        while len(self._runs) >= self._most:
            del self._runs[next(iter(self._runs))]
        found = self._runs[key] = _inner(self._common(key))
        return found

    def _edge(self, edge: Edge) -> bytes:
        if len(self._edges) >= _MOST_EDGES:
            self._edges.clear()
        source, event, dest, guard = edge
        names = _inner({"from_state": source, "fsm_event": event, "to_state": dest, "outcome": "ok"})
        allowed = b"" if guard is None else b"," + _inner({"guard": guard, "guard_result": "allow"})
        names, allowed = names.replace(b"%", b"%%"), allowed.replace(b"%", b"%%")
        found = self._edges[edge] = _TIME + names + _SECONDS + allowed + _OVERHEAD
        return found


def _inner(fields: dict[str, Any]) -> bytes:
    """Return fields as JSON without the braces."""
    return rendered(fields)[1:-2]
