"""The inbox: every question that waits for a person, and the forms that answer it.

An answer carries the digest of the call that was displayed, so it counts for exactly these arguments. The list comes
from the heads of the runs; the records of one run are read, the one whose questions are shown.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from orchestrator.console.access import Actor
from orchestrator.console.pages import Console, PageFault, segment
from orchestrator.errors import AnswerRefused, ConfigError, RunError, RunUnknown
from orchestrator.journal.stored_run import PLAN
from orchestrator.kernel.journal import RunHead
from orchestrator.machines.question import Question
from orchestrator.runtime.approval.plan_file import PlanReview
from orchestrator.runtime.runs.story import RunDetails
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


MOST: Final = 200
"""Most waiting runs in the list."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
"""The whole digest: a prefix would do for a call that only looks like the displayed one."""


async def inbox(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the open questions, oldest first."""
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
    waiting = (await console.runs.page(order_by="time_in_state", limit=MOST, waiting=True)).runs
    waiting = sorted((head for head in waiting if head.status == "parked"), key=lambda head: head.updated_at)
    chosen = next((head for head in waiting if head.run_id == run_id), None)
    if chosen is None and run_id:
        try:
            chosen = await console.runs.head(run_id)
        except RunUnknown:
            chosen = None
    elif chosen is None and waiting:
        chosen = waiting[0]
    values = {} if chosen is None else await _questions_of(console, actor, chosen)
    return await console.page(
        request,
        actor,
        "inbox",
        status=status,
        heads=waiting,
        chosen=chosen,
        fault=fault,
        typed=typed or {},
        **({"story": None, "questions": []} | values),
    )


async def _questions_of(console: Console, actor: Actor, head: RunHead) -> dict[str, Any]:
    details: RunDetails = await console.runs.get(head.run_id)
    pending = {question.key for question in await console.runs.pending(head.run_id)}
    now = time.time()
    requests = [request_of(question.input) if question.input else None for question in details.questions]
    shown = [
        {
            "question": question,
            "plan": PlanReview.of(details.story.context) if question.why == PLAN else None,
            "request": asked,
            "fields": form_fields(asked.schema or {}) if asked else [],
            "open": question.key in pending,
            "expired": bool(question.expires_at) and question.expires_at <= now,
            "forms": answer_forms(question),
            # Who decides must see the whole call, whatever the rule for transcripts.
            "complete": actor.may_operate or console.content != "never",
            "answer": next((one for one in details.unread if one.body.get("call") == question.key), None),
        }
        for question, asked in zip(details.questions, requests, strict=True)
    ]
    return {"story": details.story, "questions": shown}


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
