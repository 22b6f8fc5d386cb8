"""Questions about calls and the answers of people: each answer is bound to its question and counted once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.errors import RejectRequested
from orchestrator.kernel.mailbox import Signal
from orchestrator.machines.question import Question, judge
from orchestrator.tools.input_request import (
    InputAnswer,
    input_record,
    next_request,
    read_answer,
    request_of,
)
from orchestrator.tools.result import ToolResult
from orchestrator_callbacks.llm_loop.admission import (
    canonical_form,
    effective_call,
    is_approved,
    note_intent,
    note_result,
    put_question,
    set_form,
)
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_guards import Refusal

REJECTED = "a person rejected this call"
EXPIRED = "nobody approved this call in time"
EXPIRED_INPUT = "nobody answered in time"


async def await_answers(run: LoopRun) -> None:
    """Return when a question was answered or has expired. Approved calls have no result then, the others have one.

    Raises RejectRequested if a person ended the run instead.
    """
    ledger = run.ctx.ledger
    before = len(ledger.asked)
    while len(ledger.asked) == before:
        while (signal := run.mailbox.decision()) is not None:
            _take(run, signal)
        if _expire(run) or len(ledger.asked) < before:
            break
        await _wait(run)
    await run.settle()


async def _wait(run: LoopRun) -> None:
    """Park until an answer arrives or the first question expires."""
    asked = questions(run)
    clock = run.deps.clock
    ends = min((question.expires_at for question in asked if question.expires_at), default=0.0)

    def ring() -> None:
        run.mailbox.post(Signal(kind="decision"))

    alarm = clock.call_later(max(0.0, ends - clock.time()), ring) if ends else None
    try:
        tools = sorted({question.tool for question in asked})
        await run.await_decision(asked[0].why, calls=[question.key for question in asked], tools=tools)
    finally:
        if alarm is not None:
            alarm.cancel()


def _expire(run: LoopRun) -> bool:
    now = run.deps.clock.time()
    late = [at for at, one in run.ctx.ledger.asked.items() if one.expires_at and now >= one.expires_at]
    for position in late:
        question = run.ctx.ledger.asked.pop(position)
        if question.input is not None:
            said = {"decision": "reject", "input": "cancel", "by": "expiry", "why": EXPIRED_INPUT}
            _take_input(run, position, question, _record_answer(run, position, question, said))
            continue
        call = effective_call(run.ctx, position)
        note_result(run, ToolResult.failure(call, position, "denied", EXPIRED, kind="Expired"))
    return bool(late)


def _take(run: LoopRun, signal: Signal) -> None:
    """Apply one answer. An invalid answer is journalled with the reason and changes nothing."""
    answer = signal.payload
    if not answer:
        return  # an alarm: a question expired
    found = judged(run, answer)
    if isinstance(found, Refusal):
        body = {"id": signal.id, "kind": answer.get("decision"), "by": signal.by, "number": signal.number}
        refused = {"key": answer.get("call"), "at": run.deps.clock.time(), "refused": found.why}
        run.note("control", body | refused)
        return
    asked = run.ctx.ledger.asked
    position = next(at for at, one in asked.items() if one is found)
    taken = _record_signal(run, position, signal, found)
    if answer.get("end"):
        raise RejectRequested(signal.by, signal.why)
    del asked[position]
    if found.input is not None:
        _take_input(run, position, found, taken)
        return
    _keep_input(run, position, found, taken)
    apply_answer(run, position, answer, signal.why)


def _keep_input(run: LoopRun, position: int, question: Question, answer: Mapping[str, Any]) -> None:
    """Keep what the next attempt of the call reads of an answer, as the ledger of a stored run does."""
    inputs, asked = run.ctx.ledger.inputs, {"why": question.why, "input": question.input}
    record = input_record(asked, answer, inputs.get(position, ()))
    if record is not None:
        inputs.setdefault(position, []).append(record)


def _take_input(run: LoopRun, position: int, question: Question, answer: Mapping[str, Any]) -> None:
    """Keep an answer to a request for input; ask the next question of its round, or run the call again."""
    _keep_input(run, position, question, answer)
    if (following := next_request(question.input or {})) is not None:
        put_question(run, position, "input", request=following)
        return
    run.ctx.results[position] = None
    note_intent(run, [position])


def questions(run: LoopRun) -> list[Question]:
    """Return the open questions of a run, in the order of the calls."""
    return [question for _, question in sorted(run.ctx.ledger.asked.items())]


def judged(run: LoopRun, answer: Mapping[str, Any]) -> Question | Refusal:
    """Return the question of an answer, or the reason why the answer is invalid."""
    return judge(questions(run), run.ctx.ledger.decided, answer, now=run.deps.clock.time())


def apply_answer(run: LoopRun, position: int, answer: Mapping[str, Any], why: str) -> None:
    """Prepare an answered call to run, or give it the result that the person decided."""
    ctx = run.ctx
    call = effective_call(ctx, position)
    match answer["decision"]:
        case "approve":
            if (arguments := answer.get("arguments")) is not None:
                form = canonical_form(run, replace(call, arguments=arguments), position)
                if isinstance(form, ToolResult):
                    note_result(run, form)
                    return
                set_form(ctx, position, form)
            ctx.results[position] = None
            note_intent(run, [position])
        case "respond":
            note_result(run, ToolResult(call, position, str(answer.get("content") or "")))
        case _:
            text = f"{REJECTED}: {why}" if why else REJECTED
            note_result(run, ToolResult.failure(call, position, "denied", text, kind="Rejected"))


def _record_signal(run: LoopRun, position: int, signal: Signal, question: Question) -> Mapping[str, Any]:
    """Journal an answer and return its record."""
    said = {"decision": signal.payload["decision"], "by": signal.by, "why": signal.why}
    body: dict[str, Any] = said | {"id": signal.id, "number": signal.number}
    for member in ("arguments", "content", "end"):
        if signal.payload.get(member) is not None:
            body[member] = signal.payload[member]
    if question.input is not None and not body.get("end"):
        given = read_answer(request_of(question.input), signal.payload)
        if isinstance(given, InputAnswer):
            body["input"] = given.action
            if given.content:
                body["values"] = given.content
    return _record_answer(run, position, question, body)


def _record_answer(
    run: LoopRun, position: int, question: Question, answer: Mapping[str, Any]
) -> Mapping[str, Any]:
    body = {"key": question.key, "digest": question.digest, **answer, "at": run.deps.clock.time()}
    if "input" in body and is_approved(run.ctx, position):
        body["approved"] = True  # by an earlier answer, which still counts
    run.ctx.ledger.decided[question.key] = body
    run.note("approval", body)
    return body
