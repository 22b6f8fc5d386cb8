"""Records of a run -> its events: the only place that converts them, for live streams and for readers of a journal.

The events of a record depend only on it, the records before it, and the message that the answer became, which the
journal has in a later record of the same append. So a reader gets whole appends, in order, from the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import orjson

from orchestrator.journal.codec import encoded
from orchestrator.kernel.fact import ToolError
from orchestrator.kernel.journal import Record
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm import run_event as event
from orchestrator.llm.live_event import RunEvent
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.graph import BUDGET_OF
from orchestrator.machines.llm_loop.model import LoopState
from orchestrator.runtime.llm_loop.result import ANSWERED
from orchestrator_guards.evaluation import GUARDS, read_row

Body = Mapping[str, Any]

NEARLY = 0.8
"""Share of a budget whose use is worth a warning."""


class EventReader:
    """Converts the records of one run."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.next = 0
        """Number of the record that is read next."""
        self.ended = False
        self.answered = 0
        """Number of answers of the model."""
        self._at = 0.0
        """Time of the last record that has one."""
        self._state = ""
        self._said: Body = {}
        """The last message of the model."""
        self._children: dict[str, str] = {}
        """Key of a call -> id of its child run."""
        self._warned: set[str] = set()
        self._questions: dict[str, event.QuestionAsked] = {}
        """Key of a call -> its question, until it is answered."""
        self._is_resumed = False
        """Whether the run was resumed and has not waited for a person since."""

    def read(self, records: Sequence[Record]) -> Iterator[RunEvent]:
        """Yield the events of the next records; records that were read before are skipped."""
        for index, record in enumerate(records):
            if record.seq < self.next:
                continue
            self.next = record.seq + 1
            take = self._TAKES.get(record.kind)
            if take is None:
                continue
            if record.kind == "answer":
                self._said = {}  # the message that it became: the next one of the model before another answer
                for later in records[index + 1 :]:
                    if later.kind == "answer":
                        break
                    messages = later.body.get("messages")
                    added = messages.get("add", ()) if isinstance(messages, Mapping) else ()
                    said = [
                        one for one in added if isinstance(one, Mapping) and one.get("role") == "assistant"
                    ]
                    if said:
                        self._said = said[-1]
                        break
            at = record.body.get("at")
            self._at = float(at) if isinstance(at, int | float) else self._at
            for part, found in enumerate(take(self, record.body)):
                yield replace(found, seq=record.seq, part=part, at=self._at)

    # ---- one function for each kind ----

    def _created(self, body: Body) -> Iterator[RunEvent]:
        yield event.RunCreated(
            run_id=self.run_id,
            machine=str(body.get("graph", "")),
            agent=str(body.get("agent") or ""),
            parent_run_id=body.get("parent_run_id"),
            conversation_id=body.get("conversation_id"),
            tags=body.get("tags") or {},
        )

    def _transition(self, body: Body) -> Iterator[RunEvent]:
        source, self._state = str(body["source"]), str(body["dest"])
        yield event.StateChanged(
            run_id=self.run_id,
            event=str(body["event"]),
            source=source,
            dest=self._state,
            transition=int(body.get("seq") or 0),
            error=str((body.get("error") or {}).get("type") or ""),
        )
        for row in body.get(GUARDS) or ():
            verdict = read_row(row).verdict
            if verdict.guard not in BUDGET_OF or verdict.guard in self._warned or verdict.limit <= 0:
                continue
            if verdict.observed >= NEARLY * verdict.limit or not verdict.ok:
                self._warned.add(verdict.guard)
                yield event.BudgetWarning(
                    run_id=self.run_id, guard=verdict.guard, observed=verdict.observed, limit=verdict.limit
                )
        if source != self._state or not body.get("internal", True):
            yield from self._request()

    def _request(self) -> Iterator[RunEvent]:
        if self._state == LoopState.AWAIT_LLM:
            yield event.ModelRequestStarted(run_id=self.run_id, iteration=self.answered + 1)

    def _answer(self, body: Body) -> Iterator[RunEvent]:
        self.answered = int(body.get("iteration") or self.answered + 1)
        usage = body.get("usage") or {}
        yield event.ModelRequestFinished(
            run_id=self.run_id,
            iteration=self.answered,
            model=str(body.get("model") or ""),
            text=_text_of(self._said),
            reasoning=str(self._said.get("reasoning_content") or ""),
            tool_calls=len(self._said.get("tool_calls") or ()),
            finish_reason=body.get("finish_reason"),
            input_tokens=int(usage.get("input_tokens") or 0),
            output_tokens=int(usage.get("output_tokens") or 0),
        )

    def _intent(self, body: Body) -> Iterator[RunEvent]:
        for call in body.get("calls") or ():
            key = str(call["key"])
            yield event.ToolStarted(
                run_id=self.run_id,
                key=key,
                tool=str(call.get("tool", "")),
                arguments=self._arguments(key, call),
                effect=str(call.get("effect", "")),
            )
            if call.get("agent") is not None:
                child = self._children[key] = f"{self.run_id}:{key}"
                yield event.ChildRunStarted(
                    run_id=self.run_id, child_run_id=child, key=key, agent=str(call["agent"])
                )

    def _done(self, body: Body) -> Iterator[RunEvent]:
        if "tool" not in body:  # a change of a file
            return
        key, outcome = str(body["key"]), str(body.get("outcome", ""))
        if (child := self._children.pop(key, None)) is not None:
            yield event.ChildRunFinished(run_id=self.run_id, child_run_id=child, key=key, outcome=outcome)
        yield event.ToolFinished(
            run_id=self.run_id,
            key=key,
            tool=str(body["tool"]),
            outcome=outcome,
            result=str(body.get("content") or ""),
            seconds=float(body.get("seconds") or 0.0),
            error=ToolError.of_record(str(body["tool"]), body["error"]) if "error" in body else None,
        )

    def _question(self, body: Body) -> Iterator[RunEvent]:
        key = str(body["key"])
        asked = self._questions[key] = event.QuestionAsked(
            run_id=self.run_id,
            key=key,
            tool=str(body.get("tool", "")),
            arguments=self._arguments(key, body),
            why=str(body.get("why", "")),
            digest=str(body.get("digest", "")),
            expires_at=float(body.get("expires_at") or 0.0),
            input=form["requests"][form["name"]] if (form := body.get("input")) else None,
        )
        yield asked

    def _approval(self, body: Body) -> Iterator[RunEvent]:
        self._questions.pop(str(body.get("key", "")), None)
        yield event.QuestionAnswered(
            run_id=self.run_id,
            key=str(body.get("key", "")),
            decision=str(body.get("decision", "")),
            by=str(body.get("by") or ""),
            why=str(body.get("why") or ""),
        )

    def _parked(self, body: Body) -> Iterator[RunEvent]:
        """Repeat the open questions when a resumed run waits again: its reader may not have seen them.

        They are not repeated with RunResumed itself, because a person may have answered them since the run was left;
        the run reads the answer next.
        """
        if self._is_resumed:
            self._is_resumed = False
            yield from self._questions.values()
        yield event.RunSuspended(run_id=self.run_id, reason=str(body.get("reason", "")))

    def _unparked(self, body: Body) -> Iterator[RunEvent]:
        yield event.RunResumed(run_id=self.run_id, by=str(body.get("by") or ""))
        yield from self._request()

    def _resumed(self, body: Body) -> Iterator[RunEvent]:
        self._is_resumed = True
        yield from self._unparked(body)

    def _moved(self, body: Body) -> Iterator[RunEvent]:
        """Take the state of a migration or a recovery, which a `resumed` record follows."""
        self._state = str(body.get("state") or self._state)
        yield from ()

    def _ended(self, body: Body) -> Iterator[RunEvent]:
        self.ended = True
        outcome = str(body.get("outcome", ""))
        answered = outcome in {one.value for one in ANSWERED}
        output = body["output"] if "output" in body else _text_of(self._said) or None
        yield event.RunFinished(
            run_id=self.run_id,
            outcome=Outcome(outcome).value,
            reason=str(body.get("reason", "")),
            output=output if answered else None,
        )

    def _arguments(self, key: str, body: Body) -> str:
        """Return the arguments of a call: canonical if they differ from the model's own."""
        if body.get("arguments") is not None:
            return str(body["arguments"])
        calls = self._said.get("tool_calls") or ()
        position = int(key.rpartition(":")[2] or 0)
        return str(calls[position]["function"]["arguments"]) if position < len(calls) else ""

    _TAKES: ClassVar[Mapping[str, Callable[[EventReader, Body], Iterator[RunEvent]]]] = {
        "created": _created,
        "transition": _transition,
        "answer": _answer,
        "intent": _intent,
        "done": _done,
        "asked": _question,
        "approval": _approval,
        "parked": _parked,
        "unparked": _unparked,
        "resumed": _resumed,
        "migrated": _moved,
        "recovered": _moved,
        "ended": _ended,
    }


def as_stored(records: Iterable[Record]) -> list[Record]:
    """Return records that were just written as the journal will return them: as JSON."""
    return [record._replace(body=orjson.loads(encoded(record.kind, record.body))) for record in records]


def _text_of(raw: Body) -> str:
    content = raw.get("content")
    return Message("assistant", content).text if isinstance(content, str | list) else ""
