"""The page of two runs side by side: where they diverge, and the numbers and outputs of both."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from orchestrator.console.access import Actor
from orchestrator.console.display import money, number, span
from orchestrator.console.pages import Console
from orchestrator.console.status import detail_of, status_of
from orchestrator.drawing.status import StatusStyle
from orchestrator.errors import RunUnknown
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.runs.comparison import Divergence, RunPair

_LOG: Final = logging.getLogger("orchestrator.console")
_BEFORE, _AFTER = 3, 8
"""Transitions that are shown before the divergence, and from it on."""
_LONGEST: Final = 20_000


class NumberRow(NamedTuple):
    """A number of both runs, as text and as percents of the greater one."""

    name: str
    unit: str
    texts: tuple[str, str]
    shares: tuple[float, float]


class OutputText(NamedTuple):
    """The output of a run as text."""

    text: str
    is_cut: bool


@dataclass(frozen=True, slots=True)
class PairView:
    """Two runs on the page."""

    pair: RunPair
    heads: Sequence[RunHead]

    @property
    def statuses(self) -> list[tuple[StatusStyle, str]]:
        """The status of each run, with its detail."""
        return [(status_of(head), detail_of(head)) for head in self.heads]

    @property
    def rows(self) -> list[NumberRow]:
        """The numbers of both runs."""
        found = []
        for name, unit, first, second in self.pair.rows():
            most = max(first or 0.0, second or 0.0) or 1.0
            texts = (_text(unit, first), _text(unit, second))
            found.append(
                NumberRow(name, unit, texts, (100 * (first or 0) / most, 100 * (second or 0) / most))
            )
        return found

    @property
    def transitions(self) -> list[Divergence]:
        """The transitions around the divergence; the last ones of runs without one."""
        return list(self.pair.aligned(_BEFORE, _AFTER))

    @property
    def outputs(self) -> list[OutputText]:
        """The output of each run."""
        return [_output(run.output) for run in (self.pair.first, self.pair.second)]


def _text(unit: str, value: float | None) -> str:
    if unit == "cost":
        return money(None if value is None else round(value * 1e6))
    return span(value) if unit == "seconds" else number(value)


def _output(output: Any) -> OutputText:
    if output is None:
        return OutputText("", is_cut=False)
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2)
    return OutputText(text[:_LONGEST], is_cut=len(text) > _LONGEST)


async def compare(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with two runs side by side, or with the form that asks for them. Raises Corrupt, StoreDown."""
    given = [text for text in map(str.strip, request.query_params.getlist("run")) if text]
    heads, faults = await _heads(console, given[:2])
    view: PairView | None = None
    content = False
    if len(given) == 2 and not any(faults):  # noqa: PLR2004
        pair = await console.runs.compare(*given)
        view = PairView(pair, [heads[run.run_id] for run in (pair.first, pair.second)])
        content = console.may_read(request, actor)
        if content:
            _LOG.info("console: outputs of runs %s and %s were shown to %s", *given, actor.name)
    return await console.page(
        request,
        actor,
        "compare",
        given=[*given, "", ""][:2],
        count=len(given),
        faults=faults,
        view=view,
        content=content,
        asks=console.may_ask(actor),
    )


async def _heads(console: Console, run_ids: Sequence[str]) -> tuple[dict[str, RunHead], list[str]]:
    """Return the runs, and for each of the two fields a sentence about a run that the journal does not have, or ""."""
    heads: dict[str, RunHead] = {}
    faults = ["", ""]
    for place, run_id in enumerate(run_ids):
        try:
            heads[run_id] = await console.runs.head(run_id)
        except RunUnknown as error:
            faults[place] = str(error)
    return heads, faults
