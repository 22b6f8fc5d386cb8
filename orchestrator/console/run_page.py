"""The page of a run, and its records."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Mapping
from typing import Any, Final

import orjson
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from orchestrator.console.access import Actor
from orchestrator.console.display import moment
from orchestrator.console.pages import Console
from orchestrator.console.run_sections import RunSections, TurnWindow
from orchestrator.journal.redacted import parted
from orchestrator.kernel.journal import Record, RunHead
from orchestrator.runtime.runs.comparison import fork_of
from orchestrator.runtime.runs.details import RunDetails
from orchestrator.runtime.runs.story import Story
from orchestrator.runtime.runs.timeline import read_timeline
from orchestrator.runtime.runs.tree import RunTree

_LOG: Final = logging.getLogger("orchestrator.console")
_PAGE: Final = 100
_DECIDED: Final[Mapping[str, str]] = {
    "approve": "approved", "reject": "rejected", "respond": "answered", "cancel": "asked to cancel",
    "pause": "asked to pause", "resume": "asked to resume", "resumed": "resumed", "migrated": "migrated",
    "recovered": "recovered", "request_changes": "requested changes to",
}  # fmt: skip
_LONGEST: Final = 20_000


async def run(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the page of a run. Raises RunUnknown, Corrupt, StoreDown."""
    run_id = str(request.path_params["run_id"])
    head = await console.runs.head(run_id)
    tree = await console.runs.children(run_id)
    seen = await _seen(console, tree)
    if request.query_params.get("seen") == seen:
        return Response(status_code=204)  # nothing to swap: the records of a long run are not read again
    view = await _sections(console, head, tree)
    content = console.may_read(request, actor)
    if content:
        _LOG.info("console: content of run %s was shown to %s", run_id, actor.name)
    until = request.query_params.get("until", "")
    turns = TurnWindow.of(request.query_params.get("turns", ""))
    drawn, words = view.timeline(turns)
    lines, first = view.transcript(int(until) if until.isdecimal() else None, content=content)
    return await console.page(
        request,
        actor,
        "run",
        view=view,
        head=head,
        story=view.story,
        tree=tree,
        timeline=Markup(drawn),  # noqa: S704 - its texts are escaped by the drawing
        words=words,
        turns=turns,
        seen=seen,
        graph=view.graph(console.graphs),
        lines=lines,
        first=first,
        content=content,
        asks=console.may_ask(actor),
        fork=fork_of(view.records),
        decisions=[_decision(kind, body) for kind, body in view.story.decisions],
        address=request.url.path,
    )


async def _sections(console: Console, head: RunHead, tree: RunTree) -> RunSections:
    """Read the records of a run once, for its story and its timeline, in a thread: a long run has many."""
    story, now = Story(head.run_id), time.time()
    children = [branch.head for branch in tree.children]
    records = await console.runs.records(head.run_id)
    line = await asyncio.to_thread(
        read_timeline, records, head=head, now=now, children=children, stored=story
    )
    story.close()
    details = RunDetails(head, story, await story.unread(console.runs.journal))
    return RunSections.of(details, records, line, now)


async def _seen(console: Console, tree: RunTree) -> str:
    """Return a short text that changes with the run, its child runs and the requests to it."""
    heads, ahead = [], [tree]
    while ahead:
        branch = ahead.pop()
        heads.append((branch.head.run_id, branch.head.seq, branch.head.epoch, branch.head.owner))
        ahead += branch.children
    requests = len(await console.runs.journal.inbox(tree.head.run_id))
    return f"{zlib.crc32(repr((heads, requests)).encode()):08x}"


def _decision(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    what = str({"approval": body.get("decision"), "control": body.get("kind")}.get(kind) or kind)
    return {
        "what": _DECIDED.get(what, what),
        "key": str(body.get("key") or ""),
        "by": str(body.get("by") or "unknown"),
        "at": moment(float(body["at"])) if body.get("at") else "",
        "why": str(body.get("why") or ""),
        "refused": str(body.get("refused") or ""),
    }


async def records(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the records of a run, newest first. Raises RunUnknown, Corrupt, StoreDown."""
    run_id = str(request.path_params["run_id"])
    head = await console.runs.head(run_id)
    found = await console.runs.records(run_id)
    until = request.query_params.get("until", "")
    end = min(int(until), len(found)) if until.isdecimal() else len(found)
    content = console.may_read(request, actor)
    if content:
        _LOG.info("console: records of run %s were shown to %s", run_id, actor.name)
    shown = [_record(one, content=content) for one in found[max(0, end - _PAGE) : end][::-1]]
    return await console.page(
        request,
        actor,
        "records",
        head=head,
        records=shown,
        total=len(found),
        first=max(0, end - _PAGE),
        content=content,
        asks=console.may_ask(actor),
    )


def _record(record: Record, *, content: bool) -> dict[str, Any]:
    parts = parted(record.kind, record.body)
    body = record.body if content else parts.shown
    text = orjson.dumps(body, option=orjson.OPT_INDENT_2, default=str).decode()
    return {
        "seq": record.seq,
        "kind": record.kind,
        "epoch": record.epoch,
        "hash": record.hash,
        "at": moment(record.body.get("at")),
        "text": text[:_LONGEST],
        "cut": len(text) > _LONGEST,
        "left_out": [] if content else parts.left_out,
    }
