"""Answers to the questions of runs, from this process or another. The journal decides which answer counts.

The id of an answer contains its question: the key of the call and the digest. A store keeps one request per id,
whichever process posts it. Of two concurrent answers it keeps one, on every store and even while the run reads its
inbox; the caller of the other one gets AnswerRefused. The alternative, to read, check and then post under a unique
id, fails if another process answers in between.

An answer that the run refuses, because its question has expired or differs, does not count. It does not block the
question either: a number in the id distinguishes the next answer.
"""

from __future__ import annotations

import getpass
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from orchestrator.errors import AnswerRefused, RunOver
from orchestrator.journal.stored_run import PLAN, StoredRun
from orchestrator.kernel.journal import Journal, Posted
from orchestrator.machines.question import Question, judge
from orchestrator.tools.argument import BadArguments, json_data
from orchestrator_guards import Refusal, describe_answer, repeats_answer

DECISIONS = ("approve", "reject", "respond", "request_changes")
"""Kinds of requests that answer a question."""


def answer_of(posted: Posted) -> dict[str, Any]:
    """Return a posted answer as guards and hooks read it: its body, with its kind as `decision`."""
    return {**posted.body, "decision": posted.kind}


_MEMBERS = ("digest", "arguments", "content", "end", "why")
"""Fields of an answer besides its call."""


class PostedRequest(NamedTuple):
    """A request to a run, or an answer that counts, as stored in the journal."""

    request: Posted
    repeated: bool
    """It was posted before; nothing was posted again."""


@dataclass(slots=True)
class OpenQuestions:
    """The questions of a run.

    An answer counts as soon as the journal has stored it, even if the run has not read it.
    """

    stored: StoredRun
    now: float
    """Epoch seconds; an expired question accepts no answer."""
    waiting: dict[str, Question]
    """Key of a call -> its unanswered question."""
    answered: dict[str, Mapping[str, Any]]
    """Key of a call -> its answer that counts, with `decision`, `by`, `at` and `id`."""
    cancelled: bool = False
    """Whether the run has ended or was cancelled, so that no answer has an effect."""

    @classmethod
    async def read(cls, journal: Journal, run_id: str, now: float) -> Self:
        """Read the questions of a run and their answers. Raises RunUnknown, Corrupt, StoreDown."""
        stored = StoredRun.of(run_id, await journal.load(run_id))
        found = cls(stored, now, stored.questions, stored.decided, stored.ended is not None)
        for posted in await stored.unread(journal):
            if posted.kind == "cancel":
                found.cancelled = True
            if posted.kind in DECISIONS:
                question = found.judge(answer_of(posted))
                if isinstance(question, Refusal):
                    continue
                # It counts as soon as it is posted, in the same way as the run will count it.
                answer = {**answer_of(posted), "id": posted.id, "by": posted.by, "at": posted.at}
                for key in tuple(found.waiting) if posted.body.get("end") else (question.key,):
                    asked = found.waiting.pop(key)
                    found.answered.pop(key, None)  # so that the newest is the last entry
                    found.answered[key] = {**answer, "key": key, "digest": asked.digest}
        return found

    def judge(self, answer: Mapping[str, Any]) -> Question | Refusal:
        """Return the question of an answer, or the reason why the answer does not count."""
        return judge(self.waiting.values(), self.answered, answer, now=self.now)

    def earlier(self, call: str | None) -> Mapping[str, Any] | None:
        """Return the answer about a call that counts; without a call, the last one of the run."""
        if call is None:
            return next(reversed(self.answered.values()), None)
        return self.answered.get(call)


async def post_answer(
    journal: Journal, run_id: str, answer: Posted, now: Callable[[], float]
) -> PostedRequest:
    """Post an answer, unless another one counts. `now` returns epoch seconds; the id is made here.

    Returns normally if the same person repeats the same answer.

    Raises:
        AnswerRefused: Another answer counts, which the error names, or this one is invalid.
        RunOver: The run has ended.
        RunUnknown: The journal does not have the run.
        StoreDown: The store is unavailable.
    """
    for number in itertools.count():
        found = await OpenQuestions.read(journal, run_id, now())
        question = found.judge(answer_of(answer))
        if isinstance(question, Refusal):
            earlier = found.earlier(answer.body.get("call"))
            given = {**answer_of(answer), "by": answer.by}
            if question.kind != "answered" or earlier is None or not repeats_answer(earlier, given):
                raise _refused(found, answer, question)
            body = {name: earlier[name] for name in _MEMBERS if earlier.get(name) is not None}
            at, by_id = float(earlier.get("at") or 0.0), str(earlier.get("id", ""))
            request = Posted(by_id, answer.kind, {"call": earlier["key"], **body}, answer.by, at)
            return PostedRequest(request, repeated=True)
        if (fault := _unfit(question, answer)) is not None:
            raise AnswerRefused(run_id, fault, kind="edit")
        # The answer is bound to the current question, because the run may ask another one before it reads this.
        body = {**answer.body, "call": question.key, "digest": question.digest}
        # The number counts the answers that the run refused.
        name = f"answer {question.key} {question.digest}" + (f" {number}" if number else "")
        request = replace(answer, id=name, body=body)
        if not await journal.post(run_id, request):
            continue
        # An earlier answer with another id may count instead: it ended the whole run, or was posted by an earlier
        # version. The order of the inbox decides.
        found = await OpenQuestions.read(journal, run_id, now())
        counts = found.earlier(question.key)
        if counts is not None and counts.get("id") == request.id:
            return PostedRequest(request, repeated=False)
        now_asked = found.judge(answer_of(request))
        why = now_asked if isinstance(now_asked, Refusal) else Refusal("unasked", "the run has refused it")
        raise _refused(found, request, why)
    raise AssertionError("unreachable")


async def post_replies(
    journal: Journal, run_id: str, answers: Mapping[str, str], by: str, now: float
) -> None:
    """Post answers to questions about a run's work: question id -> text, each under an id with its question.

    Returns normally for answers that the same person repeats. Raises AnswerRefused if another answer counts, before
    anything is posted, except for a concurrent answer; RunOver; RunUnknown; StoreDown.
    """
    await _are_kept(journal, run_id, answers, by)
    for question, text in answers.items():
        for number in itertools.count():
            if await _are_kept(journal, run_id, {question: text}, by):
                break
            name = f"answer {question}" + (f" {number}" if number else "")
            body = {"answers": {question: text}, "why": ""}
            await journal.post(run_id, Posted(name, "answer", body, by, now))


async def _are_kept(journal: Journal, run_id: str, answers: Mapping[str, str], by: str) -> bool:
    """Return whether the journal stores all these answers. Raises AnswerRefused if it stores another; RunOver."""
    stored = StoredRun.of(run_id, await journal.load(run_id))
    kept = {
        question: posted
        for question, posted in (await replies(journal, stored)).items()
        if question in answers
    }
    for question, first in kept.items():
        if (first.by, first.body["answers"][question]) != (by, answers[question]):
            earlier = {"by": first.by, "decision": "answer", "at": first.at, "key": question}
            raise AnswerRefused(
                run_id, f"question {question}: {describe_answer(earlier)}", "answered", earlier
            )
    if stored.ended is not None and kept.keys() != answers.keys():
        raise RunOver(run_id, str(stored.ended.get("outcome")))
    return kept.keys() == answers.keys()


async def replies(journal: Journal, stored: StoredRun) -> dict[str, Posted]:
    """Return the answer to each question about a run's work: the first one that the run has not refused."""
    found: dict[str, Posted] = {}
    for posted in await journal.inbox(stored.run_id):
        if posted.kind == "answer":
            unknown = stored.refused.get(posted.id, "").removeprefix("there is no question ").split(", ")
            for question in (posted.body.get("answers") or {}).keys() - set(unknown):
                found.setdefault(question, posted)
    return found


def _unfit(question: Question, answer: Posted) -> str | None:
    """Return why an answer of this kind does not fit its question, or None."""
    changes = answer.kind == "request_changes"
    if question.why != PLAN:
        return "only a plan can be changed: reject the call with a reason" if changes else None
    if answer.kind == "respond":
        return "a plan has no result: approve it, reject it, or request changes"
    if answer.body.get("arguments") is not None:
        return "a plan is approved as it is: request changes instead"
    if answer.body.get("end"):
        return "rejecting a plan ends its request already: leave `end` out"
    if changes and not str(answer.body.get("why") or "").strip():
        return "the changes are empty: describe them"
    return None


def _refused(found: OpenQuestions, answer: Posted, why: Refusal) -> AnswerRefused:
    run_id, ended = found.stored.run_id, found.stored.ended
    earlier = found.earlier(answer.body.get("call")) if why.kind == "answered" else None
    if ended is None:
        return AnswerRefused(run_id, why.why, kind=why.kind, earlier=earlier)
    said = "" if earlier is None else describe_answer(earlier)
    return RunOver(run_id, str(ended.get("outcome")), why=said, earlier=earlier)


def login() -> str:
    """Return the login name; empty if it is unknown."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def default_actor() -> str:
    """Return the login name; `unknown` if there is none."""
    return login() or "unknown"


def edit_fault(arguments: object) -> str | None:
    """Return why edited arguments are invalid, or None; None as argument means no edit."""
    if arguments is None:
        return None
    try:
        given = json_data(arguments) if isinstance(arguments, str) else None
    except RecursionError:
        return "the edited arguments are nested too deeply; give a flatter object"
    except BadArguments as error:
        return f"the edited arguments are refused: {error}"
    except ValueError as error:
        return f"the edited arguments are not JSON ({error}); they must be the text of one object"
    if not isinstance(given, dict):
        return "the edited arguments must be the text of one JSON object"
    return None
