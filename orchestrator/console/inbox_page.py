"""The inbox: every question that waits for a person, and the forms that answer it.

An answer carries the digest of the call that was displayed, so it counts for exactly these arguments. The list comes
from the heads of the runs; the records of one run are read, the one whose questions are shown.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from orchestrator.console.access import Actor, session_of
from orchestrator.console.pages import Console, PageFault, printable, query, segment
from orchestrator.errors import AnswerRefused, ConfigError, RunError, RunUnknown
from orchestrator.journal.stored_run import PLAN
from orchestrator.kernel.journal import RunHead
from orchestrator.machines.question import Question
from orchestrator.runtime.approval.plan_file import PlanReview
from orchestrator.runtime.runs.listing import RunFilter
from orchestrator.runtime.runs.outline import WaitingCall, read_outlines
from orchestrator.runtime.runs.story import RunDetails
from orchestrator.runtime.service.descendant import PendingQuestion, open_ancestors
from orchestrator.tools.input_request import form_fields, request_of


class AnswerForm(NamedTuple):
    """An answer: its effect, and the text that the person may write."""

    kind: str
    title: str
    effect: str
    label: str
    button: str

    is_danger: bool = False
    """Whether the button starts something that cannot be taken back."""

    @property
    def is_required(self) -> bool:
        """Whether the person must write something: it is read by a model, or kept with the decision."""
        return self.kind != "approve"


ANSWERS: Final = ("approve", "reject", "respond", "request_changes")
"""Kinds of answers."""
_HARMLESS: Final = frozenset(("pure", "idempotent", "compensable"))
_REASON: Final = "Reason, kept with the decision"
_REQUIRED: Final = "Reason, required; the model reads it"
_RESULT: Final = "Result, required; the model reads it"
_ONCE: Final = (
    "The tool runs once with exactly these arguments.{} The process of the run continues it; without one, an engine "
    "resumes it within about a second."
)
_NOT_RUN: Final = "The tool does not run. The model reads your text as the result of the call."
_REFUSED: Final = (
    "The tool does not run. The model reads that the call was refused, with your reason, and continues."
)


_PLAN_RUNS: Final = (
    "The plan is carried out step by step, if no file has changed since it was made. A process with the folder of the "
    "project does it: orchestrator approval wait, now or when it starts.{}"
)


def answer_forms(question: Question) -> list[AnswerForm]:
    """Return the answers to a question, each with its effect."""
    if question.why == PLAN:
        return _plan_forms(question)
    if question.input is not None:
        # The answers to a request for input: its values as JSON, or a yes; and a no.
        request = request_of(question.input)
        told, why = "The call continues with your answer.", "Reason, required; it is not sent to the tool"
        no = AnswerForm("reject", "Decline", "The tool reads that you declined.", why, "Decline")
        if request.schema is None:
            return [AnswerForm("approve", "Confirm", told, _REASON, "Confirm"), no]
        names = ", ".join(one.name for one in form_fields(request.schema))
        label = f"JSON object with {names}" if names else "{}"
        return [AnswerForm("respond", "Give the input", told, label, "Send"), no]
    danger = question.effect not in _HARMLESS
    if question.why == "unknown_effect":
        again = "It did not take effect. " + _ONCE.format("")
        failed = "The model reads that the call failed."
        given = f"{_NOT_RUN} Write what it returned."
        return [
            AnswerForm("approve", "Run it again", again, _REASON, "Run it again", is_danger=danger),
            AnswerForm("reject", "Do not run it", failed, _REQUIRED, "Do not run it"),
            AnswerForm("respond", "It took effect", given, _RESULT, "Send as result"),
        ]
    once = _ONCE.format(" It cannot be taken back." if danger else "")
    instead = f"{_NOT_RUN} Use it if you did the work yourself."
    return [
        AnswerForm("approve", "Approve", once, _REASON, "Approve and run once", is_danger=danger),
        AnswerForm("reject", "Reject", _REFUSED, _REQUIRED, "Reject the call"),
        AnswerForm("respond", "Respond", instead, _RESULT, "Send as result"),
    ]


def _plan_forms(question: Question) -> list[AnswerForm]:
    danger = question.effect not in _HARMLESS
    undo = " Its commands cannot be undone." if danger else " A cancel restores every file."
    discard = "The plan is discarded and its request ends. No file changes."
    another = "The planner makes another version with your text. It waits here again, with the difference to this one."
    return [
        AnswerForm(
            "approve", "Approve", _PLAN_RUNS.format(undo), _REASON, "Approve the plan", is_danger=danger
        ),
        AnswerForm(
            "reject", "Reject", discard, "Reason, required; kept with the decision", "Reject the plan"
        ),
        AnswerForm("request_changes", "Request changes", another, "Changes, required", "Request changes"),
    ]


PAGE: Final = 50
"""Waiting runs on a page of the list, and most questions that are answered at once."""
AGES: Final[Mapping[str, float]] = {"10 minutes": 600.0, "1 hour": 3_600.0, "1 day": 86_400.0}
"""Least ages that the list can be filtered by, in seconds."""
DESCENDANTS: Final = 10
"""Descendants whose questions are complete on the page of a run above them."""
_TELLING: Final = 3
"""Most arguments of a call in the list."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
"""The whole digest: a prefix would do for a call that only looks like the displayed one."""


@dataclass(frozen=True, slots=True)
class InboxFilter:
    """The filters of the list as its address has them. An unknown one is ignored."""

    agent: str = ""
    tool: str = ""
    tag: str = ""
    """`name=value`."""
    age: str = ""
    """A key of AGES."""
    number: int = 1
    """Number of the page, from 1. A cursor would skip runs: the run that it names can be answered meanwhile."""

    @classmethod
    def of(cls, request: Request) -> InboxFilter:
        """Read the address of the page."""
        texts = {
            name: printable(request.query_params.get(name, "")) for name in ("agent", "tool", "tag", "age")
        }
        texts["tag"] = texts["tag"] if texts["tag"].partition("=")[1] else ""
        texts["age"] = texts["age"] if texts["age"] in AGES else ""
        number = request.query_params.get("page", "")
        return cls(**texts, number=min(max(int(number), 1), 10_000) if number.isdecimal() else 1)

    def conditions(self, now: float) -> RunFilter:
        """Return the conditions of the listing."""
        found = RunFilter(status="parked", waiting=self.tool or True)
        if self.agent:
            found["agent"] = self.agent
        if self.tag:
            name, _, value = self.tag.partition("=")
            found["tag"] = {name.strip(): value.strip()}
        if self.age:
            found["older_than"] = now - AGES[self.age]
        return found

    def address(self, **changes: object) -> str:
        """Return the query of the same list with some parts changed; another filter starts at the first page."""
        parts = {"agent": self.agent, "tool": self.tool, "tag": self.tag, "age": self.age}
        return query({**parts, **changes})


class InboxRow(NamedTuple):
    """A run in the list, with what tells its first call from the others."""

    head: RunHead
    call: WaitingCall | None
    """None if the excerpt of its records does not have it."""
    arguments: Sequence[tuple[str, str]]
    more: int
    """Further calls that wait."""
    viewers: Sequence[str]
    """Other people who look at its questions in this console."""


def telling_arguments(calls: Sequence[WaitingCall]) -> list[list[tuple[str, str]]]:
    """Return, for each call, the few arguments by which a person tells it from the others.

    Those that differ between the calls of the same tool come first, otherwise the order is that of the schema. Lists
    and objects are left out.
    """
    read = [_scalars(call.arguments) for call in calls]
    values: dict[tuple[str, str], set[str]] = {}
    for call, pairs in zip(calls, read, strict=True):
        for name, value in pairs:
            values.setdefault((call.tool, name), set()).add(value)
    return [
        sorted(pairs, key=lambda pair: len(values[tool, pair[0]]) == 1)[:_TELLING]
        for tool, pairs in ((call.tool, pairs) for call, pairs in zip(calls, read, strict=True))
    ]


def _scalars(arguments: str) -> list[tuple[str, str]]:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, dict):
        return []
    return [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in found.items()
        if not isinstance(value, dict | list) and value not in {"", None}
    ]


async def inbox(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the open questions, those of the longest wait first."""
    return await _page(console, request, actor, request.query_params.get("run", ""))


async def _page(  # noqa: PLR0917
    console: Console,
    request: Request,
    actor: Actor,
    run_id: str,
    fault: str = "",
    typed: Mapping[str, str] | None = None,
    status: int = 200,
) -> Response:
    chosen_filter, now = InboxFilter.of(request), time.time()
    conditions = chosen_filter.conditions(now)
    total = (await console.feed.counts(0.0, **conditions)).total
    last = max(1, math.ceil(total / PAGE))
    chosen_filter = replace(chosen_filter, number=min(chosen_filter.number, last))
    start = (chosen_filter.number - 1) * PAGE
    waiting = (await console.runs.page(order_by="time_in_state", limit=PAGE, offset=start, **conditions)).runs
    chosen = next((head for head in waiting if head.run_id == run_id), None)
    if chosen is None and run_id:
        try:
            chosen = await console.runs.head(run_id)
        except RunUnknown:
            chosen = None
    elif chosen is None and waiting:
        chosen = waiting[0]
    if chosen is not None:
        console.viewers.look(chosen.run_id, session_of(request), actor.name)
    values = {} if chosen is None else await _questions_of(console, actor, chosen)
    return await console.page(
        request,
        actor,
        "inbox",
        status=status,
        rows=await _rows(console, request, actor, waiting),
        total=total,
        first=start + 1,
        last_page=last,
        filter=chosen_filter,
        ages=AGES,
        agents=sorted({agent for _, agent in await console.names() if agent}),
        tools=sorted({name for head in waiting for name in head.waiting.split(", ")}),
        chosen=chosen,
        is_named=bool(run_id),
        viewers=console.viewers.others(chosen.run_id, session_of(request)) if chosen else (),
        fault=fault,
        typed=typed or {},
        **({"questions": [], "below": []} | values),
    )


def _sees_whole_call(console: Console, actor: Actor) -> bool:
    """Return whether the arguments of a question are shown: who decides must see the whole call."""
    return actor.may_operate or (console.content != "never" and actor.may_read_content)


async def _rows(console: Console, request: Request, actor: Actor, heads: Sequence[RunHead]) -> list[InboxRow]:
    outlines = await read_outlines(console.runs.journal, heads)
    first = [next(iter(outlines[head.run_id].calls), None) for head in heads]
    calls = [call for call in first if call is not None]
    told = iter(telling_arguments(calls) if _sees_whole_call(console, actor) else [[] for _ in calls])
    session = session_of(request)
    return [
        InboxRow(
            head,
            call,
            next(told) if call is not None else (),
            max(len(outlines[head.run_id].calls) - 1, 0),
            console.viewers.others(head.run_id, session),
        )
        for head, call in zip(heads, first, strict=True)
    ]


async def _questions_of(console: Console, actor: Actor, head: RunHead) -> dict[str, Any]:
    """Return the questions of a run, then those of its descendants: DESCENDANTS runs complete, and the others."""
    in_tree = await console.runs.pending(head.run_id)
    below = list(dict.fromkeys(one.run_id for one in in_tree if one.run_id != head.run_id))
    shown = await _shown_questions(console, actor, head, in_tree)
    for run_id in below[:DESCENDANTS]:
        shown += await _shown_questions(console, actor, await console.runs.head(run_id), in_tree)
    return {
        "questions": shown,
        "below": [question for question in in_tree if question.run_id in below[DESCENDANTS:]],
    }


async def _shown_questions(
    console: Console, actor: Actor, head: RunHead, in_tree: Sequence[PendingQuestion]
) -> list[dict[str, Any]]:
    details: RunDetails = await console.runs.get(head.run_id)
    pending = {question.key for question in in_tree if question.run_id == head.run_id}
    above, now = await open_ancestors(console.runs.journal, head), time.time()
    requests = [request_of(question.input) if question.input else None for question in details.questions]
    return [
        {
            "head": head,
            "story": details.story,
            "above": above,
            "question": question,
            "plan": PlanReview.of(details.story.context) if question.why == PLAN else None,
            "request": asked,
            "fields": form_fields(asked.schema or {}) if asked else [],
            "open": question.key in pending,
            "expired": bool(question.expires_at) and question.expires_at <= now,
            "forms": answer_forms(question),
            "complete": _sees_whole_call(console, actor),
            "answer": next((one for one in details.unread if one.body.get("call") == question.key), None),
        }
        for question, asked in zip(details.questions, requests, strict=True)
    ]


async def answer(console: Console, request: Request, actor: Actor, form: Mapping[str, list[str]]) -> Response:
    """Post an answer, for the digest that was displayed. Raises PageFault."""
    run_id = str(request.path_params["run_id"])
    given = {name: (form.get(name) or [""])[0] for name in ("kind", "call", "digest", "text")}
    text = given["text"].strip()
    if given["kind"] not in ANSWERS or not given["call"] or not _DIGEST.fullmatch(given["digest"]):
        raise PageFault(400, "The form has no answer, or names no call with its whole digest.")
    try:
        if given["kind"] != "approve" and not text:
            raise ConfigError("Write a text, for the model or for the readers of the journal.")  # noqa: TRY301 - shown as the other refusals
        by = actor.name
        call, digest = given["call"], given["digest"]
        if given["kind"] == "approve":
            await console.runs.approve(run_id, call, digest=digest, by=by, why=text)
        elif given["kind"] == "reject":
            await console.runs.reject(run_id, call, digest=digest, by=by, why=text)
        elif given["kind"] == "request_changes":
            await console.runs.request_changes(run_id, text, call, digest=digest, by=by)
        else:
            await console.runs.respond(run_id, text, call, digest=digest, by=by)
    except (AnswerRefused, ConfigError) as error:
        typed = {f"{given['call']} {given['kind']}": given["text"]}
        return await _page(console, request, actor, run_id, fault=str(error), typed=typed, status=409)
    except RunError as error:
        raise PageFault(409, str(error)) from error
    return RedirectResponse(f"{request.scope.get('root_path', '')}/runs/{segment(run_id)}", 303)


# ---- several questions at once ----

_SEVERAL: Final[Mapping[str, str]] = {"approve": "Approve", "reject": "Reject"}
_LONG: Final = 20_000
"""Characters of the arguments of a call that is answered with others: a person reads a longer one by itself."""
_ALONE: Final[Mapping[str, str]] = {
    "unknown_effect": "it may have run already",
    "undo_failed": "undoing it failed",
    "input": "it asks for input",
    PLAN: "it is a plan",
}


class ListedQuestion(NamedTuple):
    """A question among several, and why it is not answered with them; "" if it is."""

    head: RunHead
    question: Question
    left_out: str


def left_out(kind: str, question: Question, now: float) -> str:
    """Return why a question is not answered together with others; "" if it can be.

    Args:
        kind: `approve` or `reject`.
        question: The question.
        now: Epoch seconds.
    """
    if question.expires_at and question.expires_at <= now:
        return "it has expired"
    if len(question.arguments) > _LONG:
        return f"its arguments have more than {_LONG:,} characters"
    if question.why in {"unknown_effect", "undo_failed"} or (kind == "approve" and question.why in _ALONE):
        return _ALONE[question.why]
    if kind == "approve" and question.effect not in _HARMLESS:
        return "its effect is irreversible" if question.effect else "its effect is not recorded"
    return ""


async def preview(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the questions of several runs, each complete, before one answer to them is posted."""
    kind, run_ids = request.query_params.get("kind", ""), request.query_params.getlist("run")
    if kind not in _SEVERAL or not actor.may_operate:
        raise PageFault(400, "Choose approve or reject, in a console that was started with --operate.")
    if not 1 <= len(run_ids) <= PAGE:
        raise PageFault(400, f"Select 1 to {PAGE} runs in the inbox.")
    found: list[ListedQuestion] = []
    now = time.time()
    for run_id in dict.fromkeys(run_ids):
        head = await console.runs.head(run_id)
        found += [
            ListedQuestion(head, question, left_out(kind, question, now))
            for question in await console.runs.pending(run_id)
            if question.run_id == run_id  # a child run is selected by itself
        ]
    return await console.page(
        request,
        actor,
        "answers",
        kind=kind,
        word=_SEVERAL[kind],
        reached=[one for one in found if not one.left_out],
        skipped=[one for one in found if one.left_out],
        done=None,
    )


async def post(console: Console, request: Request, actor: Actor, form: Mapping[str, list[str]]) -> Response:
    """Post one answer to the questions that were displayed, each for its digest. Raises PageFault."""
    kind, text = ((form.get(name) or [""])[0].strip() for name in ("kind", "text"))
    keys = [form.get(name) or [] for name in ("run", "call", "digest")]
    if kind not in _SEVERAL or not keys[0] or len({len(one) for one in keys}) != 1 or len(keys[0]) > _MOST:
        raise PageFault(400, "The form has no questions with their calls and digests. Open the page again.")
    if not all(map(_DIGEST.fullmatch, keys[2])):
        raise PageFault(400, "The form has a question without its whole digest. Open the page again.")
    if kind == "reject" and not text:
        raise PageFault(400, "Write a reason: the model reads it. Go back, nothing was posted.")
    done = [
        (run_id, call, await _post_to(console, kind, run_id, call, digest, actor, text))
        for run_id, call, digest in zip(*keys, strict=True)
    ]
    return await console.page(
        request, actor, "answers", kind=kind, word=_SEVERAL[kind], reached=(), skipped=(), done=done
    )


_MOST: Final = 500
"""Most questions of a form: a run can have several."""


async def _post_to(  # noqa: PLR0917 - the parts of one answer
    console: Console, kind: str, run_id: str, call: str, digest: str, actor: Actor, text: str
) -> str:
    """Post an answer to a question; return the result in words."""
    try:
        asked = await console.runs.pending(run_id)
        question = next((one for one in asked if (one.run_id, one.key) == (run_id, call)), None)
        refused = question and left_out(kind, question, time.time())  # also for a form that nobody displayed
        if refused:
            return f"not posted: {refused}; answer it by itself"
        post_answer = console.runs.approve if kind == "approve" else console.runs.reject
        posted = await post_answer(run_id, call, digest=digest, by=actor.name, why=text)
    except RunError as error:
        return f"not posted: {error}"
    word = "approved" if kind == "approve" else "rejected"
    return f"was {word} before" if posted.repeated else word
