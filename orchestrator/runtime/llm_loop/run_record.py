"""Runs of the loop as records, and their restoration in another process or after a crash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.journal.context import ContextCodec
from orchestrator.journal.ledger import EffectEntry
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import ToolError
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Message, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext, LoopState
from orchestrator.machines.question import Question
from orchestrator.runtime.service.restored_run import rebuilt
from orchestrator.runtime.service.resume_plan import unclear
from orchestrator.tools.result import NoSuchResult, ToolResult, description_of, stored_json
from orchestrator_callbacks.llm_loop import answer, memory
from orchestrator_callbacks.llm_loop.admission import (
    KEPT_ERRORS,
    UNDECIDED,
    close_turn,
    effective_call,
    key_of,
    tool_digest,
)
from orchestrator_callbacks.llm_loop.deps import LoopDeps, LoopRun
from orchestrator_callbacks.llm_loop.tool_work import after_crash


def loop_codec(launch: Mapping[str, Any] | None = None) -> ContextCodec[LoopContext]:
    """Return the codec of the loop. The answer, its results and the ledger are restored from other records.

    A resumed run evaluates the guards again, so their decision is not stored.
    """
    return ContextCodec(
        LoopContext,
        growing="messages",
        item=_plain_messages,
        windows=("turns",),
        apart=("response", "results", "ledger", "output", "remembered", "decision", "tool_errors"),
        output=output_record,
        about=lambda ctx: {"conversation_id": ctx.conversation_id} | ({"launch": launch} if launch else {}),
    )


def _plain_messages(ctx: LoopContext, messages: list[Message]) -> list[Any]:
    """Return messages in OpenAI form.

    A result of this turn is replaced by its key, because its record has it already.
    """
    plain: list[Any] = []
    position = 0
    for message in messages:
        key = None
        if message.role == "tool":
            while position < len(ctx.results):
                result = ctx.results[position]
                same = result is not None and (result.content is message.content or result.parts)
                if result is not None and same and result.is_said_by(message):
                    break
                position += 1
            if position < len(ctx.results):
                key, position = f"{ctx.iteration}:{position}", position + 1  # `key_of`
        plain.append(message.to_openai() if key is None else {"done": key})
    return plain


def output_record(ctx: LoopContext) -> Mapping[str, Any]:
    """Return the output if the last message does not contain it.

    An output that no record can hold is described, because the run has ended all the same.
    """
    output = ctx.output
    if output is None:
        return {}
    try:
        if isinstance(output, str) and output == ctx.messages[-1].text:
            return {}
        return {"output": stored_json(output)}
    except Exception:  # noqa: BLE001 - code of the output can raise anything
        return {"output": None, "returned": description_of(output)}


_STATES = frozenset(LoopState)


def restored(
    stored: StoredRun,
    machine: Machine,
    deps: LoopDeps,
    codec: ContextCodec[LoopContext],
) -> LoopRun:
    """Return the run as of its last record, ready for `drive`. Changes nothing outside."""
    messages, made = _messages(stored)
    ctx = codec.decoded(stored.context | {"messages": messages})
    _answer(ctx, stored)
    _calls(ctx, stored, made)
    ctx.tool_errors = tool_errors_of(stored)
    for position in ctx.ledger.started:  # a tool that is missing here is reported elsewhere
        declared = stored.ledger.entries[key_of(ctx, position)].declared
        spec = deps.tools.find(effective_call(ctx, position).name)
        if declared and spec is not None and tool_digest(spec) != declared:
            ctx.ledger.changed |= {position}
    ctx.remembered = stored.remembered
    run: LoopRun = rebuilt(stored, machine, ctx, deps, codec)
    last = ctx.messages[-1] if ctx.messages else None
    added = run.cursor.state not in _STATES  # by the host, perhaps between the accepted answer and the end
    if run.state == LoopState.FINALIZE or (
        added and last is not None and last.role == "assistant" and not last.tool_calls
    ):
        answer.read(run)
        answer.restore_output(run)
    return run


def history_of(stored: StoredRun, codec: ContextCodec[LoopContext]) -> list[Message]:
    """Return the messages of a run up to its end or its last record, with an answer to each call."""
    return memory.conversation(context_of(stored, codec))


def context_of(stored: StoredRun, codec: ContextCodec[LoopContext]) -> LoopContext:
    """Return the context of a run that does not continue: each call of its last turn has an answer."""
    messages, made = _messages(stored)
    ctx = codec.decoded(stored.context | {"messages": messages})
    _answer(ctx, stored)
    _calls(ctx, stored, made)
    close_turn(ctx)
    return ctx


def _messages(stored: StoredRun) -> tuple[list[Message], dict[str, ToolResult]]:
    """Return the messages, and the results of the calls of the last turn that are referenced in them."""
    messages: list[Message] = []
    results: dict[str, ToolResult] = {}
    calls: tuple[ToolCall, ...] = ()
    for item in stored.messages:
        if "done" not in item:
            message = Message.from_openai(item)
            if message.role == "assistant":
                calls, results = message.tool_calls, {}
        else:
            entry = stored.ledger.entries[item["done"]]
            result = results[entry.key] = _result(entry, calls[entry.position])
            message = result.message()
        messages.append(message)
    return messages, results


def _canonical(entry: EffectEntry, call: ToolCall) -> ToolCall:
    """Return a call as it was announced. In older records only the answer contains a person's edit."""
    text = entry.arguments
    if text is None and entry.answer is not None:
        text = entry.answer.get("arguments")
    return call if text is None else replace(call, arguments=text)


def _result(entry: EffectEntry, call: ToolCall) -> ToolResult:
    body = entry.done or {}
    call = ToolCall(**body["call"]) if body.get("call") else _canonical(entry, call)
    return ToolResult(
        call,
        entry.position,
        body["content"],
        body["outcome"],
        body.get("seconds", 0.0),
        body.get("queued", 0.0),
        body.get("cut", False),
        body.get("at", 0.0),
        parts=tuple(body.get("parts", ())),
        returned=body.get("returned"),
        error=ToolError.of_record(body["tool"], body["error"]) if "error" in body else None,
    )


def tool_errors_of(stored: StoredRun) -> tuple[ToolError, ...]:
    """Return the last exceptions of tools in the records of a run."""
    bodies = (entry.done for entry in stored.ledger.entries.values() if entry.done is not None)
    found = [ToolError.of_record(body["tool"], body["error"]) for body in bodies if "error" in body]
    return tuple(found[-KEPT_ERRORS:])


def _answer(ctx: LoopContext, stored: StoredRun) -> None:
    """Restore the current answer: the last one, unless a restart has dropped it."""
    said = next((one for one in reversed(ctx.messages[ctx.base :]) if one.role == "assistant"), None)
    about = stored.answer
    if said is None or about.get("iteration") != ctx.iteration:
        return
    ctx.response = Response(
        said.content,
        said.tool_calls,
        about.get("finish_reason"),
        Usage.of(about.get("usage") or {}),
        about.get("model"),
        said.refusal,
        said.reasoning,
    )


def _calls(ctx: LoopContext, stored: StoredRun, made: Mapping[str, ToolResult]) -> None:
    """Restore the results and the ledger entries of the calls of this turn."""
    calls = ctx.response.tool_calls if ctx.response else ()
    entries = stored.ledger.of_turn(ctx.iteration)
    if not calls or not entries:
        return
    ctx.results = [None] * len(calls)
    ledger = ctx.ledger
    for entry in entries:
        position, call = entry.position, calls[entry.position]
        if entry.answer is not None:
            ledger.decided[entry.key] = entry.answer
        ledger.inputs[position] = [*entry.inputs]
        if (canonical := _canonical(entry, call)) != call:
            ledger.canonical[position] = canonical
        if entry.done is not None:
            ctx.results[position] = made.get(entry.key) or _result(entry, call)
            ledger.noted |= {position}
        elif entry.asked is not None:
            question = Question.from_record(entry.key, entry.tool, call.arguments, entry.asked)
            ledger.asked[position] = question
            ctx.results[position] = ToolResult.failure(
                call, position, "cancelled", UNDECIDED, kind="Undecided"
            )
        elif entry.open:
            ledger.started[position] = entry.effect
            ledger.approved[position] = entry.digest


def may_have_sent_request(stored: StoredRun) -> bool:
    """Return whether a request may have been sent whose answer is in no record.

    A request may be sent beside the append that records the turn before it. So a run that crashed in its calls may
    have sent one, unless more of its calls are open than that append can have held the results of: those of calls
    with effects are written one by one, except the last.
    """
    if stored.state == LoopState.AWAIT_LLM:
        return stored.asks_the_model
    if stored.state not in _BEFORE_REQUEST or stored.parked is not None:
        return False
    if stored.next is not None:
        return True  # it was paused there, and has been resumed
    entries = stored.ledger.entries.values()
    return not stored.ledger.waiting and sum(one.open and one.effect != "pure" for one in entries) <= 1


_BEFORE_REQUEST = (LoopState.PROCESS_TOOLS, LoopState.UPDATE_BUDGETS)


def repeated_work(stored: StoredRun, tools: Mapping[str, str]) -> Iterator[str]:
    """Yield how a resumed run repeats its interrupted request or calls. `tools` are those here, with their digests."""
    if stored.state == LoopState.AWAIT_LLM and stored.asks_the_model:
        yield "asks the model again; what the lost answer may have cost is charged"
    for entry in unclear(stored) if stored.state == LoopState.PROCESS_TOOLS and stored.next is None else ():
        if entry.declared and tools.get(entry.tool, entry.declared) != entry.declared:
            yield f"asks a person about {entry.tool}: the tool has changed since the call was announced"
            continue
        match after_crash(entry.effect):
            case "again" if entry.effect == "pure":
                yield f"runs {entry.tool} again (pure)"
            case "again":
                yield f"runs {entry.tool} again with the same key ({entry.effect})"
            case "undo":
                yield f"takes {entry.tool} back and runs it again ({entry.effect})"
            case "ask":
                yield f"asks a person about {entry.tool}: it may have happened (irreversible)"
    if stored.state != LoopState.AWAIT_LLM and may_have_sent_request(stored):
        yield "charges a model request, which may have followed"


def enabled_budgets(limits: Limits) -> list[str]:
    """Return the names of the limits that are set, as metrics have them."""
    values = {
        "max_iterations": limits.max_iterations,
        "input_tokens": limits.max_input_tokens,
        "output_tokens": limits.max_output_tokens,
        "cost": limits.max_cost_micros,
        "time": limits.max_seconds,
        "tool_calls": limits.max_tool_calls,
        "retries": limits.max_retries,
    }
    return [name for name, limit in values.items() if limit]


def summary(run: Run[LoopContext, Any]) -> dict[str, Any]:
    """Return tokens, cost, counts, and the used share of each enabled limit."""
    spent = run.ctx.spent
    used, limits = spent.total, run.ctx.limits
    budgets = (
        ("iterations", run.ctx.iteration, limits.max_iterations),
        ("input_tokens", used.input_tokens, limits.max_input_tokens),
        ("output_tokens", used.output_tokens, limits.max_output_tokens),
        ("cost", used.cost_for_limits, limits.max_cost_micros),
        ("time", spent.seconds, limits.max_seconds),
        ("tool_calls", spent.tool_calls, limits.max_tool_calls),
        ("retries", spent.retries, limits.max_retries),
    )
    return {
        "tokens_in": used.input_tokens,
        "tokens_out": used.output_tokens,
        "cost": used.cost,
        "tool_calls": spent.tool_calls,
        "retries": spent.retries,
        "restarts": spent.restarts,
        "compactions": spent.compactions,
        "budget_used": {name: round(part / limit, 4) for name, part, limit in budgets if limit},
    }


class StoredResults:
    """Whole texts of results that were cut. A run can read its own only, because a handle is looked up in its records.

    Args:
        journal: The journal of the runs.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def read(self, run_id: str, handle: str) -> str:
        """Return the whole text of a result.

        Args:
            run_id: The run that reads.
            handle: The key of the call, as in the mark of the cut result.

        Raises:
            NoSuchResult: The run has no stored result with this handle.
            JournalError: The journal cannot be read, or the content is damaged.
        """
        digests = {
            record.body["key"]: record.body["whole"]
            for record in await self._journal.load(run_id)
            if record.kind == "done" and "whole" in record.body
        }
        if handle not in digests:
            known = ", ".join(digests) or "none"
            raise NoSuchResult(f"there is no stored result {handle!r} in this run; stored results: {known}")
        return (await self._journal.blob(digests[handle])).decode()
