"""The page of a backtest: limits as fields over the runs of a filter, and what those limits would have changed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from markupsafe import Markup
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from orchestrator.console.access import Actor
from orchestrator.console.pages import RUN_FILTERS, Console, printable, query, while_connected
from orchestrator.console.runs_page import Selection, selection
from orchestrator.drawing.stylesheet import STATUSES
from orchestrator.errors import ConfigError
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.backtest.backtest import sweep
from orchestrator.runtime.backtest.comparison import RunComparison
from orchestrator.runtime.backtest.policy import IGNORED, Policy, SweepRange
from orchestrator.runtime.backtest.report import (
    CHANGE_WORDS,
    SWEEP_COLUMNS,
    Report,
    backtest_svg,
    report_rows,
)
from orchestrator.settings import build

MOST_RUNS: Final = 1_000
MOST_SECONDS: Final = 20.0
"""Bounds of one backtest in the console; the command line has none."""
_LISTED: Final = 100
"""Most runs in the table of differences."""
_FIELDS: Final = tuple(item.name for item in fields(Limits) if item.name not in IGNORED)
_FIRST: Final = (
    *("max_iterations", "max_no_progress", "max_repeated_success", "max_tool_errors", "max_tool_calls"),
    *("max_input_tokens", "max_output_tokens", "max_cost", "max_seconds", "wrap_up_turns"),
)
"""Fields that are shown at once; the others are behind "More limits"."""
_SINCE: Final[Mapping[str, float]] = {"1h": 3_600.0, "1d": 86_400.0, "7d": 604_800.0, "30d": 2_592_000.0}


@dataclass(slots=True)
class PolicyForm:
    """The limits of the form, as typed and as values."""

    texts: Mapping[str, str]
    """Field -> the text in it, for the fields that are not empty."""
    limits: dict[str, Any] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    """Field -> the sentence beside it."""
    policies: Mapping[str, Policy] = field(default_factory=dict)
    """Label -> policy; empty if nothing is to be tested."""

    @classmethod
    def of(cls, given: QueryParams) -> PolicyForm:
        """Read the address of a page. Nothing is raised: each fault is beside its field."""
        names = (*_FIELDS, "sweep")
        form = cls({name: text for name in names if (text := printable(given.get(name, "")))})
        for name, text in form.texts.items():
            if name != "sweep":
                form._read(name, text)
        swept = form.texts.get("sweep", "")
        try:
            if swept:
                form.policies = SweepRange.of(swept).policies(Policy(form.limits))
            elif form.limits:
                form.policies = {"": Policy(form.limits)}
        except ConfigError as error:
            form.faults["sweep"] = str(error)
        if form.faults:
            form.policies = {}
        return form

    def _read(self, name: str, text: str) -> None:
        try:
            value = json.loads(text) if text.startswith("{") else text
            found = getattr(build(Limits, {name: value}, ""), name)
            Policy({name: found})
            self.limits[name] = found
        except ConfigError as error:
            self.faults[name] = str(error)
        except (ValueError, RecursionError):
            self.faults[name] = f'{name} is not JSON; give it as {{"search": 3}}'

    @property
    def extends(self) -> bool:
        """Whether a field behind "More limits" is filled."""
        return any(name not in _FIRST and name != "sweep" for name in self.texts)


@dataclass(slots=True)
class BacktestView:
    """The result of a backtest on the page."""

    reports: Sequence[Report]
    found: Sequence[RunComparison]
    """The first runs with a difference, if there is one policy."""
    svg: Markup

    @property
    def report(self) -> Report:
        """The first report; all of them have the same runs."""
        return self.reports[0]

    @property
    def more(self) -> int:
        """Runs with a difference that the table does not name."""
        return self.report.runs - self.report.unchanged - len(self.found)


async def backtest(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the form, and with the report if its limits are valid."""
    chosen, form = await selection(console, request, actor), PolicyForm.of(request.query_params)
    machine = {"machine": chosen.texts.get("machine", LLM_LOOP.name)}
    view: BacktestView | None = None
    refusal = ""
    if form.policies and not form.faults and request.headers.get("sec-fetch-site") != "cross-site":
        try:
            view = await while_connected(request, _tested(console, form, chosen, request.query_params))
        except ConfigError as error:
            refusal = str(error)
    names = await console.names()
    matching = (await console.runs.count(**{**chosen.conditions, **machine})).total
    # The status filters with their words.
    words = {"open": STATUSES["running"]._replace(word="Open"), "parked": STATUSES["paused"]}
    statuses = [(name, words.get(name) or STATUSES[name]) for name in RUN_FILTERS]

    # A function from changed parts to the query of the same page.
    def address(**changes: str) -> str:
        return query({**dict(request.query_params.items()), **changes})

    return await console.page(
        request,
        actor,
        "backtest",
        chosen=chosen,
        form=form,
        view=view,
        refusal=refusal,
        matching=matching,
        most=MOST_RUNS,
        first=_FIRST,
        others=[name for name in _FIELDS if name not in _FIRST],
        statuses=statuses,
        since=request.query_params.get("since", ""),
        spans=tuple(_SINCE),
        agents=sorted({agent for name, agent in names if agent and name == LLM_LOOP.name}),
        words=CHANGE_WORDS,
        columns=SWEEP_COLUMNS,
        rows=report_rows,
        style_of=STATUSES.get,
        swept=form.texts.get("sweep", "").partition("=")[0].strip(),
        address=address,
    )


async def _tested(console: Console, form: PolicyForm, chosen: Selection, given: QueryParams) -> BacktestView:
    """Run the backtest; only one runs at a time. Raises ConfigError, StoreDown."""
    found: list[RunComparison] = []

    def take(one: RunComparison) -> None:
        if one.change != "none" and len(found) < _LISTED:
            found.append(one)

    swept = form.texts.get("sweep", "")
    seconds = _SINCE.get(given.get("since", ""))
    async with console.backtests:
        reports = await sweep(
            console.runs,
            form.policies,
            since=None if seconds is None else time.time() - seconds,
            limit=MOST_RUNS,
            seconds=MOST_SECONDS,
            each=None if swept else take,
            **chosen.conditions,
        )
    drawn = await asyncio.to_thread(backtest_svg, reports, swept, styled=False)
    return BacktestView(reports, found, Markup(drawn))  # noqa: S704 - its texts are escaped by the drawing
