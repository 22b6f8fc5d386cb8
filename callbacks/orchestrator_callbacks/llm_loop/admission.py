"""Admission of the calls of a turn. Caps are checked before a tool runs, never after.

Admission happens before the intent of the turn is written, so that the journal shows after a crash which calls may
have started.

The approval flag in the digest of an approved call is `always`, `rule` or `never`, as the tool declares it. The
result of a rule follows from the arguments, and a function has no name that two processes share.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import orjson

from orchestrator.errors import ConfigError
from orchestrator.kernel.clock import WHOLE, micros
from orchestrator.llm.message import INCOMPLETE, ToolCall, encodable, finish_reason_of
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import CallLedger, LoopContext
from orchestrator.machines.question import Question
from orchestrator.tools.argument import is_complete
from orchestrator.tools.input_request import request_of
from orchestrator.tools.result import ToolResult, explain
from orchestrator.tools.spec import SERVER, ToolSpec
from orchestrator.tools.tool_set import ReadArguments, canonical_call
from orchestrator_callbacks.llm_loop.deps import LoopRun, ToolProvider
from orchestrator_guards import (
    DIGEST_VERSION,
    Verdict,
    approval_digest,
    call_key,
    call_keys,
    first_refusal,
    repeated_success,
    tool_calls,
    tool_cap,
    tool_key,
)
from orchestrator_guards.evaluation import Row, given, row_of
from orchestrator_guards.progress import Policy

KEPT_ERRORS: Final = 100
"""Exceptions of tools that a run keeps beside its records, for its result."""
_LONGEST = 300
_DIGITS: Final = 12
_DIGESTS: Final[WeakKeyDictionary[ToolSpec, str]] = WeakKeyDictionary()
_SCHEMAS: Final[WeakKeyDictionary[ToolSpec, bytes]] = WeakKeyDictionary()


class ApprovalDecision(NamedTuple):
    """The decision of an approval rule about a call."""

    asks: bool
    """Whether a person has to approve the call."""
    verdict: Verdict | None = None
    notice: str = ""
    """Why the person is asked although the rule did not request it."""


def judge_call(spec: ToolSpec | None, call: ToolCall) -> ApprovalDecision:
    """Return whether a person has to approve a call in canonical form. A failing rule counts as yes."""
    if spec is None or isinstance(spec.approval, bool):
        return ApprovalDecision(spec is not None and spec.approval is True)
    try:
        found: object = spec.approval(json.loads(call.arguments))
    except Exception as error:  # noqa: BLE001 - for any error of a host's rule the safe answer is to ask
        return ApprovalDecision(asks=True, notice=_because(f"failed ({explain(error)})"))
    if isinstance(found, bool):
        return ApprovalDecision(found)
    if isinstance(found, Verdict) and _is_sound(found):
        return ApprovalDecision(not found.ok, found)
    return ApprovalDecision(
        asks=True, notice=_because(f"returned {type(found).__name__}, not a bool or a valid Verdict")
    )


def _because(what: str) -> str:
    text: str = encodable(what if len(what) <= _LONGEST else f"{what[: _LONGEST - 1]}…")
    return f"the approval rule of this tool {text}, so a person is asked"


def _is_sound(verdict: Verdict) -> bool:
    """Return whether a Verdict can be stored and shown."""
    ok: object = verdict.ok
    texts: tuple[object, ...] = (verdict.guard, verdict.detail)
    numbers: tuple[object, ...] = (verdict.observed, verdict.limit)
    return (
        isinstance(ok, bool)
        and all(isinstance(one, str) and one == encodable(one) for one in texts)
        and all(isinstance(one, int | float) and math.isfinite(one) for one in numbers)
    )


def approval_flag(spec: ToolSpec | None) -> str:
    """Return how a tool declares its approval."""
    if spec is not None and not isinstance(spec.approval, bool):
        return "rule"
    return "always" if spec is not None and spec.approval else "never"


def tool_digest(spec: ToolSpec) -> str:
    """Return a short digest of what a tool declares: schema, effect and approval flag."""
    found = _DIGESTS.get(spec)
    if found is None:
        declared = [dict(spec.parameters), spec.effect, approval_flag(spec)]
        body = orjson.dumps(declared, option=orjson.OPT_SORT_KEYS, default=repr)
        found = hashlib.sha256(body).hexdigest()[:_DIGITS]
        found = _DIGESTS[spec] = f"{SERVER}{found}" if spec.kind == "mcp" else found
    return found


def definition_of(specs: Iterable[ToolSpec]) -> dict[str, str]:
    """Return the tools of an agent as its runs store them: name -> digest."""
    return {spec.name: tool_digest(spec) for spec in specs}


def tool_schemas(offers: Iterable[ToolSpec]) -> bytes:
    """Return the tools that a model is offered, as JSON for the readers of its journal."""
    return b"[%s]" % b",".join(map(_schema, offers))


def _schema(spec: ToolSpec) -> bytes:
    found = _SCHEMAS.get(spec)
    if found is None:
        shown = {
            "name": spec.name,
            "description": spec.description,
            "parameters": dict(spec.parameters),
            "effect": spec.effect,
            "approval": approval_flag(spec),
            "digest": tool_digest(spec),
        }
        found = _SCHEMAS[spec] = orjson.dumps(shown, default=repr)
    return found


def digest_of(run: LoopRun, call: ToolCall, about: str) -> str:
    """Return the digest of a call in canonical form; `about` names the call, and a later question about it."""
    spec = run.deps.tools.find(call.name)
    schema: dict[str, Any] | None = None if spec is None else dict(spec.parameters)
    return approval_digest(
        call.name if spec is None else spec.name,
        call.arguments,
        run=run.run_id,
        call=about,
        fingerprint=run.graph.fingerprint,
        schema=schema,
        effect="" if spec is None else spec.effect,
        approval=approval_flag(spec),
        agent=run.deps.agent,
    )


UNFINISHED = "the run was stopped before this call finished"
CHANGED = "not run: a hook changed this call after a person approved it"
UNASKED = "not run: a hook put a call here that a person has to approve"
CHANGED_TOOL = (
    "the tool has another schema, effect or approval than when this call was announced, so a person is asked"
)
UNDECIDED = "the run was stopped before anybody approved this call"


@dataclass(slots=True)
class AdmittedCall:
    """A call of the present turn with what its tool, its records and its guards need of it; made once."""

    call: ToolCall
    """As it will run: in canonical form, from the model or edited by a person."""
    spec: ToolSpec | None
    """Its tool; None if there is none of this name. An unknown tool has no effect: it is `pure`."""
    key: str
    """Its key in records: (turn, position), because ids of calls can repeat or be empty."""
    read: ReadArguments | None = None
    """Its arguments, read at its admission, until the tool takes them."""


def admit_again(run: LoopRun, position: int) -> AdmittedCall:
    """Store and return a call of the turn that the ledger lacks: after a restore, or because its form was changed."""
    ctx = run.ctx
    call = effective_call(ctx, position)
    made = ctx.ledger.admitted[position] = AdmittedCall(
        call, run.deps.tools.find(call.name), key_of(ctx, position)
    )
    return made


def admit(run: LoopRun) -> None:
    """Decide on every call of the answer: refused, asked about, or run. Each decision is journalled.

    Only this function gives a call its canonical form. Guards, questions, intents and tools use that form; the
    message history keeps the model's own text. A call without a canonical form gets its result here.
    """
    ctx = run.ctx
    response, find = ctx.response, run.deps.tools.find
    calls = () if response is None else response.tool_calls
    ledger = ctx.ledger = CallLedger()
    ctx.results = [None] * len(calls)
    incomplete = (
        None
        if response is None
        else INCOMPLETE.get(finish_reason_of(response.finish_reason, response.refusal))
    )
    forms: list[tuple[ToolSpec | None, ToolCall | ToolResult, ReadArguments | None]] = []
    for position, call in enumerate(calls):
        spec = find(call.name)
        form, read = (call, None) if spec is None else canonical_call(spec, call, position)
        forms.append((spec, form, read))
    blocked = None
    if ctx.wrapping_up:
        blocked = "this is the last turn of the run: no tool runs any more; answer from what you have"
    elif (expected := ctx.progress.expected) is not None:
        seen = (form.call if isinstance(form, ToolResult) else form for _, form, _ in forms)
        if call_keys((one.name, one.arguments) for one in seen) == expected.calls:
            blocked = (
                "not run: this repeats earlier calls that brought no progress; do something else or answer"
            )
    to_run: list[int] = []
    for position, (spec, form, read) in enumerate(forms):
        call = form.call if isinstance(form, ToolResult) else form
        tool = tool_key(call.name)
        why = blocked or _over_limit(run, call, tool, spec)
        if why:
            note_result(run, ToolResult.failure(call, position, "denied", why, kind="Denied"))
            continue
        ctx.spent.tool_calls += 1
        ctx.spent.by_tool[tool] = ctx.spent.by_tool.get(tool, 0) + 1
        if incomplete and (lost := cut_off(calls, position, spec, incomplete)) is not None:
            form = lost  # noqa: PLW2901
        if isinstance(form, ToolResult):
            note_result(run, form)
            continue
        asked = calls[position]
        if form is not asked and form != asked:
            ledger.canonical[position] = form
        else:
            form = asked  # noqa: PLW2901
        ledger.admitted[position] = AdmittedCall(form, spec, key_of(ctx, position), read)
        if spec is not None and spec.approval is not False:
            judgement = judge_call(spec, form)
            if judgement.asks:
                put_question(run, position, "approval", judgement)
                continue
        to_run.append(position)
    note_intent(run, to_run)


_CUT = {
    "truncated": "not run: your output limit cut this call before its arguments were complete; make shorter calls, or "
    "give long content in several calls",
    "filtered": "not run: a content filter of the provider cut this call before its arguments were complete; do it in "
    "another way, or answer without it",
}
"""Reason why an answer is incomplete -> result of a call that it cut."""


def cut_off(
    calls: Sequence[ToolCall], position: int, spec: ToolSpec | None, incomplete: str | None
) -> ToolResult | None:
    """Return the result of a call whose end is missing because its answer is incomplete, else None.

    Some vendors give no arguments at all for such a call, which would run its tool with its defaults.
    """
    if incomplete not in _CUT:
        return None
    call = calls[position]
    text = call.arguments.strip()
    takes_arguments = spec is None or bool(spec.parameters.get("properties"))
    lost = position == len(calls) - 1 and text in {"", "{}", "null"} and takes_arguments
    if not lost and is_complete(text):
        return None
    return ToolResult.failure(call, position, "invalid_args", _CUT[incomplete], "CutOff")


def canonical_form(run: LoopRun, call: ToolCall, position: int) -> ToolCall | ToolResult:
    """Return a call in canonical form, or its error result; a call of an unknown tool is returned unchanged."""
    spec = run.deps.tools.find(call.name)
    return call if spec is None else canonical_call(spec, call, position)[0]


def set_form(ctx: LoopContext, position: int, call: ToolCall) -> None:
    """Store the form in which a call runs, if it differs from the model's own text."""
    asked = _calls_of(ctx)[position]
    ctx.ledger.admitted.pop(position, None)
    if call is asked or call == asked:
        ctx.ledger.canonical.pop(position, None)
    else:
        ctx.ledger.canonical[position] = call


def put_question(
    run: LoopRun,
    position: int,
    why: str,
    judgement: ApprovalDecision = ApprovalDecision(asks=True),  # noqa: B008 - a tuple
    *,
    expires_at: float | None = None,
    request: Mapping[str, Any] | None = None,
) -> None:
    """Ask a person about a call, which has a provisional result until then.

    `expires_at` is the expiry of a question that this one replaces; without it `approval_seconds` count from now.
    `request` is the record of a request for input.
    """
    ctx = run.ctx
    call = effective_call(ctx, position)
    key = key_of(ctx, position)
    epoch = run.lease.epoch if run.lease and why not in _BEFORE_EFFECT else 0
    spec = run.deps.tools.find(call.name)
    if expires_at is None:
        patience = ctx.limits.approval_seconds
        expires_at = run.deps.clock.time() + patience if patience else 0.0
    question = Question(
        key,
        call.name,
        call.arguments,
        digest_of(run, call, _about(ctx, position, why, epoch, request)),
        why,
        expires_at,
        judgement.verdict,
        judgement.notice,
        epoch=epoch,
        effect="" if spec is None else spec.effect,
        input=request,
    )
    ctx.ledger.asked[position] = question
    ctx.results[position] = ToolResult.failure(call, position, "cancelled", UNDECIDED, kind="Undecided")
    run.note("asked", question.record(_calls_of(ctx)[position].arguments))


_BEFORE_EFFECT = ("approval", "input")
"""Reasons of questions about calls that are not interrupted: another owner of the run asks the same question."""


def _about(ctx: LoopContext, position: int, why: str, epoch: int, request: Mapping[str, Any] | None) -> str:
    # An answer to one question must not count for another question about the same call, which may have been asked
    # later.
    key = key_of(ctx, position)
    if why == "approval":
        return key
    if request is not None:
        return f"{key} {why} {len(ctx.ledger.inputs.get(position, ()))} {request_of(request).digest}"
    before = ctx.ledger.decided.get(key)
    return f"{key} {why} {epoch}" + (f" {before['id']}" if before is not None else "")


def renew_question(run: LoopRun, position: int, question: Question) -> None:
    """Ask again if a stored question differs from the current call, or has a digest of an older version.

    A call that its tool does not accept any more needs no approval: it gets the error result.
    """
    ctx = run.ctx
    call = effective_call(ctx, position)
    form = canonical_form(run, call, position)
    if isinstance(form, ToolResult):
        if question.why == "approval":
            del ctx.ledger.asked[position]
            note_result(run, form)
            return
        form = call  # whether it took effect is still unknown
    digest = digest_of(run, form, _about(ctx, position, question.why, question.epoch, question.input))
    if (question.version, question.arguments, question.digest) == (DIGEST_VERSION, form.arguments, digest):
        return
    set_form(ctx, position, form)
    judgement = ApprovalDecision(asks=True)
    if question.why == "approval":
        judgement = judge_call(run.deps.tools.find(form.name), form)
    put_question(
        run, position, question.why, judgement, expires_at=question.expires_at, request=question.input
    )


def readmit(run: LoopRun, position: int) -> bool:
    """Check an interrupted call again with the tools of this process; return whether it may run.

    A person is asked again if the tool, schema, effect or approval flag differs from what was approved or announced,
    and about a call that needed no approval when it was announced.
    """
    ctx = run.ctx
    call = effective_call(ctx, position)
    form = canonical_form(run, call, position)
    if isinstance(form, ToolResult):
        note_result(run, form)
        return False
    set_form(ctx, position, form)
    judgement = judge_call(run.deps.tools.find(form.name), form)
    if is_approved(ctx, position):
        asks = ctx.ledger.approved.get(position) != digest_of(run, form, key_of(ctx, position))
    else:
        asks = judgement.asks
        if position in ctx.ledger.changed:
            asks, judgement = True, judgement._replace(notice=judgement.notice or CHANGED_TOOL)
    if asks:
        put_question(run, position, "approval", judgement)
    elif form != call:
        note_intent(run, [position])
    return not asks


def is_approved(ctx: LoopContext, position: int) -> bool:
    """Return whether a person approved a call."""
    if not ctx.ledger.decided:
        return False
    found = ctx.ledger.decided.get(key_of(ctx, position), {})
    return bool(found.get("approved") if "input" in found else found.get("decision") == "approve")


def replacement(run: LoopRun, position: int, call: ToolCall) -> ToolCall | ToolResult:
    """Return the call that a host's hook put in place of another, in canonical form, or its error result.

    A hook cannot approve for a person: an approved call runs unchanged or not at all.
    """
    form = canonical_form(run, call, position)
    if isinstance(form, ToolResult):
        return form
    if is_approved(run.ctx, position):
        return ToolResult.failure(call, position, "denied", CHANGED, kind="NotApproved")
    if judge_call(run.deps.tools.find(form.name), form).asks:
        return ToolResult.failure(call, position, "denied", UNASKED, kind="NotApproved")
    return form


def note_intent(run: LoopRun, positions: Sequence[int]) -> None:
    """Announce calls in the journal: from then on they may have run."""
    if not positions:
        return
    ctx = run.ctx
    ledger, asked = ctx.ledger, _calls_of(ctx)
    announced = []
    for position in positions:
        one = ledger.admitted.get(position) or admit_again(run, position)
        call, spec = one.call, one.spec
        about: dict[str, Any] = {
            "key": one.key,
            "position": position,
            "tool": call.name,
            "effect": "pure" if spec is None else spec.effect,
        }
        if call.arguments != asked[position].arguments:
            about["arguments"] = call.arguments
        if ledger.decided and is_approved(ctx, position):
            about["digest"] = ledger.approved[position] = digest_of(run, call, one.key)
        if spec is None:
            about |= _INVENTED
        else:
            if spec.timeout:
                about["timeout"] = spec.timeout
            if spec.total_timeout:
                about["total_timeout"] = spec.total_timeout
            if (child := getattr(spec.call, "agent_name", None)) is not None:
                about["agent"] = child  # the call starts a child run
        announced.append(about)
    run.note("intent", {"effect": "tool", "turn": ctx.iteration, "calls": announced})


_INVENTED = {"registered": False}
"""Marks an unregistered tool: its name comes from the model and must not be shown."""


def note_result(run: LoopRun, result: ToolResult) -> None:
    """Store a call's result and journal it."""
    ctx, position, call = run.ctx, result.position, result.call
    admitted = ctx.ledger.admitted.get(position) or admit_again(run, position)
    ctx.results[position] = result if result.whole is None else replace(result, whole=None)
    ctx.ledger.noted |= {position}
    body: dict[str, Any] = {
        "effect": "tool",
        "key": admitted.key,
        "tool": call.name,
        "outcome": result.outcome,
        "content": result.content,
        # If no tool ran, the time of the decision.
        "at": ((result.at or run.deps.clock.time()) * 1e6 + WHOLE - WHOLE) / 1e6,  # `micros`, inline
        "seconds": (result.seconds * 1e6 + WHOLE - WHOLE) / 1e6,  # `micros`, inline
    }
    announced = admitted.call
    if (admitted.spec if call.name == announced.name else run.deps.tools.find(call.name)) is None:
        body |= _INVENTED
    if result.queued:
        body["queued"] = micros(result.queued)
    if result.cut:
        body["cut"] = True
    if result.parts:
        body["parts"] = result.parts
    if result.outcome != "ok":
        if result.returned is not None:
            body["returned"] = result.returned
        if result.error is not None:
            body["error"] = result.error.as_record()
            ctx.tool_errors = (*ctx.tool_errors, result.error)[-KEPT_ERRORS:]
    if result.whole is not None:
        body["whole"] = run.store(result.whole.encode())
    if call is not announced and call != announced:
        body["call"] = call
    run.note("done", body)


def key_of(ctx: LoopContext, position: int) -> str:
    """Return the key of a call in records: (turn, position), because ids of calls can repeat or be empty."""
    return f"{ctx.iteration}:{position}"


def effective_call(ctx: LoopContext, position: int) -> ToolCall:
    """Return a call as it will run: in canonical form, from the model or edited by a person."""
    return ctx.ledger.canonical.get(position) or _calls_of(ctx)[position]


def _calls_of(ctx: LoopContext) -> tuple[ToolCall, ...]:
    return ctx.response.tool_calls if ctx.response else ()


def close_turn(ctx: LoopContext) -> None:
    """Append the results of the turn in call order, once; calls without a result are answered as cancelled."""
    calls = ctx.response.tool_calls if ctx.response else ()
    if not calls or ctx.messages[-1].role != "assistant":
        return
    for position, call in enumerate(calls):
        result = ctx.results[position] if ctx.results else None
        ctx.messages.append((result or unfinished(call, position)).message())


def unfinished(call: ToolCall, position: int, started: float = 0.0, now: float = 0.0) -> ToolResult:
    """Return the result of an interrupted call. `started` is epoch seconds; 0 if it did not start here."""
    result = ToolResult.failure(call, position, "cancelled", UNFINISHED, kind="Cancelled")
    return replace(result, at=started, seconds=max(0.0, now - started)) if started else result


def _over_limit(run: LoopRun, call: ToolCall, tool: str, spec: ToolSpec | None) -> str | None:
    """Evaluate the guards about one call of a folded tool name; the first refusal ends the run after this turn."""
    ctx = run.ctx
    limits, successes = ctx.limits, 0
    if limits.max_repeated_success and (seen := ctx.progress.successes.get(tool)) is not None:
        # how often the call has succeeded in a row with the same arguments and result
        successes = seen.times if seen.call == call_key(call.name, call.arguments) else 0
    if not (successes or limits.max_tool_calls or limits.tool_caps):
        return None
    asked, rows = verdicts_for(ctx, call.name, successes, spec.progress if spec else "strict")
    if rows:
        run.attach_guards(rows)
    refusal = first_refusal(asked)
    if refusal is None:
        return None
    if ctx.verdict is None:
        ctx.verdict = refusal
    return f"not run: {refusal.explain()}"


def refuse_unknown_tools(limits: Limits, tools: ToolProvider) -> None:
    """Raise ConfigError if a limit names a tool that does not exist, because it would limit nothing.

    A source of tools that has none yet, as a server that has announced none, can still have the tool: then the run
    checks again when the source has been read, before its first request.
    """
    known = {tool_key(spec.name): spec.name for spec in tools.offers}
    unknown = sorted(limits.tool_caps.keys() - known.keys())
    if not unknown or not getattr(tools, "offers_all", True):
        return
    if not all(source.tools for source in tools.collections):
        return
    close = difflib.get_close_matches(unknown[0], known, n=1)
    meant = f"; did you mean {known[close[0]]!r}?" if close else ""
    have = ", ".join(known.values()) or "none"
    raise ConfigError(
        f"limit tool_caps names the tool {unknown[0]!r}, which does not exist{meant} (tools: {have})"
    )


def verdicts_for(
    ctx: LoopContext, tool: str, successes: int, policy: Policy
) -> tuple[list[Verdict], list[Row]]:
    """Evaluate the guards about one call of a tool, and return their verdicts and rows.

    `successes` is the number of its consecutive equal successes, 0 for another call than the last successful one.
    """
    limits, spent, key = ctx.limits, ctx.spent, tool_key(tool)
    asked = []
    if limits.max_tool_calls:
        asked.append(tool_calls(spent.tool_calls, limits.max_tool_calls))
    cap = limits.tool_caps.get(key, 0)
    if cap:
        asked.append(tool_cap(tool, spent.by_tool.get(key, 0), cap))
    rows = [row_of(verdict) for verdict in asked]
    if limits.max_repeated_success and successes:
        inputs = successes, limits.max_repeated_success, policy
        asked.append(repeated_success(*inputs))
        rows.append(given(asked[-1], repeated_success, *inputs))
    return asked, rows
