"""The page of a request to runs: the runs that it reaches and, after it was posted, the result for each.

A request carries the version of each run that the page displayed. A run that is still running has the same version,
even if it has new records. If a run has parked, continued or ended since, the request to it is refused, and the page
names the change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from orchestrator.console.access import Actor
from orchestrator.console.pages import Console, PageFault
from orchestrator.console.runs_page import ListedHead, Selection
from orchestrator.console.status import detail_of, status_of
from orchestrator.errors import ConfigError, RunError
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.runs.request import RunRequest

MOST: Final = 1_000
"""Most runs of a request to several."""
KINDS: Final[Mapping[str, str]] = {"cancel": "Cancel", "pause": "Pause", "resume": "Resume"}
STALE: Final = "not asked: since this page was shown, the run has changed from {} to {}"


def version_of(head: RunHead) -> str:
    """Return the version of a run that a page displays.

    A run that works has one version until it parks or ends; a parked one has the number of its last record.
    """
    return "open" if head.status == "open" else f"{head.status} {head.seq}"


async def preview(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the runs that a request would reach, before it is posted. Raises PageFault."""
    kind = request.query_params.get("kind", "")
    if kind not in KINDS or not actor.may_operate:
        raise PageFault(400, "Choose cancel, pause or resume, in a console that was started with --operate.")
    run_ids = request.query_params.getlist("run")
    if run_ids:
        found = [await console.runs.head(run_id) for run_id in run_ids[:MOST]]
    else:
        found = await _matching(console, kind, Selection.of(request))
    reached, skipped = _reached(kind, found)
    return await _page(console, request, actor, kind, reached=reached, skipped=skipped)


async def post(console: Console, request: Request, actor: Actor, form: Mapping[str, list[str]]) -> Response:
    """Post a request to runs as they were displayed, and answer with the result of each. Raises PageFault."""
    kind = (form.get("kind") or [""])[0]
    run_ids, versions = form.get("run") or [], form.get("version") or []
    if kind not in KINDS or not run_ids:
        raise PageFault(400, "No run was selected.")
    if len(versions) != len(run_ids):
        raise PageFault(400, "The form does not have the displayed version of each run. Open the page again.")
    why = (form.get("why") or [""])[0].strip()
    displayed = list(zip(run_ids, versions, strict=True))[:MOST]
    done = [await _request(console, kind, *one, actor, why) for one in displayed]
    return await _page(console, request, actor, kind, done=done)


async def _page(console: Console, request: Request, actor: Actor, kind: str, **values: Any) -> Response:
    shown = {"reached": (), "skipped": (), "done": None} | values
    return await console.page(
        request, actor, "several", kind=kind, word=KINDS[kind], version_of=version_of, **shown
    )


async def _matching(console: Console, kind: str, chosen: Selection) -> list[RunHead]:
    if not chosen.conditions:
        raise PageFault(400, "Select runs, or choose a filter first.")
    found: list[RunRequest] = await _posters(console)[kind](preview=True, **chosen.conditions)
    if len(found) > MOST:
        raise PageFault(400, f"{len(found):,} runs match; choose a filter that at most {MOST:,} runs match.")
    return [one.run for one in found]


def _reached(kind: str, heads: Sequence[RunHead]) -> tuple[list[ListedHead], list[ListedHead]]:
    """Return the runs that a request reaches, and those that it skips."""

    def takes(head: RunHead) -> bool:
        return head.status == "parked" if kind == "resume" else head.status != "ended"

    return [ListedHead(head) for head in heads if takes(head)], [
        ListedHead(head) for head in heads if not takes(head)
    ]


def _posters(console: Console) -> dict[str, Any]:
    runs = console.runs
    return {"cancel": runs.cancel, "pause": runs.pause, "resume": runs.request_resume}


async def _request(  # noqa: PLR0917 - the parts of one request
    console: Console, kind: str, run_id: str, version: str, actor: Actor, why: str
) -> tuple[str, str]:
    """Post a request to a run; return its id and the result."""
    try:
        head = await console.runs.head(run_id)
        if version_of(head) != version:
            return run_id, STALE.format(_described(version), _status(head))
        [posted] = await _posters(console)[kind](run_id, by=actor.name, why=why)
    except ConfigError:
        raise
    except RunError as error:
        return run_id, str(error)
    if posted.refused:
        return run_id, posted.refused
    return run_id, "was asked before, and has not read it yet" if posted.repeated else "was asked"


def _described(version: str) -> str:
    """Return a displayed version in words; it comes from a form."""
    status, _, number = version.partition(" ")
    word = {"open": "running", "parked": "parked", "ended": "ended"}.get(status, "unknown")
    return f"{word}, record {number}" if number.isdecimal() else word


def _status(head: RunHead) -> str:
    """Return the present status of a run in words."""
    detail = detail_of(head)
    where = "" if head.status == "open" else f", record {head.seq}"
    return f"{status_of(head).word.lower()}{f' ({detail})' if detail else ''}{where}"
