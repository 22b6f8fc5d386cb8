"""The path of a stored run: its transitions as facts."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.kernel.journal import Record
from orchestrator.kernel.record import Transition


@dataclass(frozen=True, slots=True, eq=False)
class RecordedPath:
    """The transitions in the records of a run. Facts are made when they are asked for: a resumed run seldom needs them.

    Args:
        run_id: The run.
        graph: Name of its graph.
        records: Its records, from the first; only those of the path are kept.
        laps: Events that count an iteration.
    """

    run_id: str
    graph: str
    records: Sequence[Record]
    laps: Container[str] = ()

    @classmethod
    def of(
        cls, run_id: str, graph: str, records: Iterable[Record], laps: Container[str] = ()
    ) -> RecordedPath:
        """Return the path of a run with all its records."""
        return cls(run_id, graph, [record for record in records if record.kind in _PATH_KINDS], laps)

    def __iter__(self) -> Iterator[Transition]:
        return iter(path_of(self.run_id, self.graph, self.records, laps=self.laps))


_PATH_KINDS = frozenset(("transition", "answer"))


def path_of(
    run_id: str, graph: str, records: Iterable[Record], *, laps: Container[str] = ()
) -> list[Transition]:
    """Return the transitions of a run as facts. Events in `laps` count an iteration."""
    path: list[Transition] = []
    before = 0.0
    iteration = 0
    for record in records:
        body: Mapping[str, Any] = record.body
        if record.kind == "answer":
            iteration = body["iteration"]
        elif record.kind == "transition":
            elapsed = float(body.get("t", before))
            iteration += body["event"] in laps
            path.append(
                Transition(
                    graph,
                    run_id,
                    body["seq"],
                    body["event"],
                    body["source"],
                    body["dest"],
                    float(body.get("dwell", elapsed - before)),
                    body["at"],
                    iteration,
                    internal=bool(body.get("internal")),
                    tokens=body.get("tokens", 0),
                    reason=body.get("reason", ""),
                )
            )
            before = elapsed
    return path
