"""The answers to a question as forms: what each does, and the text that the person may or must write. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from orchestrator.journal.plan_question import PLAN
from orchestrator.machines.llm_loop.model import Question
from orchestrator.tools.input_form import form_fields
from orchestrator.tools.input_request import InputRequest, request_of


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
        return _input_forms(request_of(question.input))
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


def _input_forms(request: InputRequest) -> list[AnswerForm]:
    """Return the answers to a request for input: its values as JSON, or a yes; and a no."""
    told, why = "The call continues with your answer.", "Reason, required; it is not sent to the tool"
    no = AnswerForm("reject", "Decline", "The tool reads that you declined.", why, "Decline")
    if request.schema is None:
        return [AnswerForm("approve", "Confirm", told, _REASON, "Confirm"), no]
    names = ", ".join(one.name for one in form_fields(request.schema))
    label = f"JSON object with {names}" if names else "{}"
    return [AnswerForm("respond", "Give the input", told, label, "Send"), no]


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
