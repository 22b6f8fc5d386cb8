"""Runs of the loop as records, exactly as a driver writes them, and journals made of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, Lease, Posted, write_records

JOURNAL = "journal.db"
SECRET = "the moon is made of cheese"  # noqa: S105  what nobody may read without --content


class Call(NamedTuple):
    """A tool call with its result."""

    tool: str
    arguments: str = json.dumps({"about": SECRET})
    effect: str = "irreversible"
    content: str = f"result: {SECRET}"
    outcome: str = "ok"
    id: str = "call_1"


class Tape:
    """The records of one run. Each step of the run adds the appends that a driver makes of it."""

    def __init__(self, run_id: str, *, began: float | None = None, prompt: str = SECRET, **body: Any) -> None:
        self.run_id = run_id
        self.at = time.time() - 100 if began is None else began
        self.t = 0.0
        self.seq = self.turn = 0
        self.state = "init"
        message = {"role": "user", "content": prompt}
        context = {"messages": [message], "limits": {"max_iterations": 100}, "base": 1, "iteration": 0}
        self.created = {"schema": 1, "graph": "llm_loop", "fingerprint": "f" * 64, "at": self.at} | {
            "parent_run_id": None,
            "conversation_id": None,
            "context": context,
            **body,
        }
        self.appends: list[list[Draft]] = []

    # ---- steps ----

    def begin(self) -> Tape:
        return self.add(self.to("await_llm", "start_loop", 0.001), Draft("context", {}))

    def calls(self, *calls: Call, seconds: float = 1.0) -> Tape:
        """The model asks for calls, all of them run."""
        self.asked_for(*calls, seconds=seconds)
        for position, call in enumerate(calls):
            done = self.done(call, position)
            if position < len(calls) - 1:
                self.add(done)
        results = [{"done": f"{self.turn}:{position}"} for position in range(len(calls))]
        return self.add(
            done,
            self.to("update_budgets", "tools_executed", 0.5),
            self.to("await_llm", "budget_ok", 0.0),
            Draft("context", {"messages": {"add": results}}),
        )

    def asked_for(self, *calls: Call, seconds: float = 1.0) -> Tape:
        """The model asks for calls; what becomes of them is not known."""
        self._answer(seconds)
        keys = [
            {"key": f"{self.turn}:{position}", "position": position, "tool": call.tool, "effect": call.effect}
            for position, call in enumerate(calls)
        ]
        return self.add(
            self.answer("tool_calls", seconds),
            self.to("evaluate_response", "llm_response", seconds),
            self.to("process_tools", "response_with_tools", 0.0),
            Draft("intent", {"effect": "tool", "turn": self.turn, "calls": keys}),
            self.said(None, *calls),
        )

    def asks(self, *calls: Call, expires_in: float | None = None, why: str = "approval") -> Tape:
        """The model asks for calls that a person has to approve; the run parks."""
        self._answer(1.0)
        keys = [f"{self.turn}:{position}" for position in range(len(calls))]
        asked = [
            {"key": key, "tool": call.tool, "digest": self.digest(key), "why": why}
            | ({} if expires_in is None else {"expires_at": time.time() + expires_in})
            for key, call in zip(keys, calls, strict=True)
        ]
        return self.add(
            self.answer("tool_calls", 1.0),
            self.to("evaluate_response", "llm_response", 1.0),
            self.to("process_tools", "response_with_tools", 0.0),
            *(Draft("asked", body) for body in asked),
            self.said(None, *calls),
        ).parks(why, calls=keys, tools=sorted({call.tool for call in calls}))

    def parks(self, reason: str, **detail: Any) -> Tape:
        return self.add(Draft("parked", {"reason": reason, "at": self.at, "t": self.t, **detail}))

    def decided(self, key: str, decision: str, by: str = "ann", **more: Any) -> Tape:
        body = {"key": key, "digest": self.digest(key), "decision": decision, "by": by, "why": ""}
        return self.add(Draft("approval", body | {"at": self.at, "id": os.urandom(4).hex(), **more}))

    def completes(self, text: str = "Two moons.", outcome: str = "completed", reason: str = "none") -> Tape:
        self._answer(1.0)
        return self.add(
            self.answer("stop", 1.0),
            self.to("evaluate_response", "llm_response", 1.0),
            self.to("handle_completion", "response_no_tool", 0.0),
            self.to("finalize", "completion_success", 0.0),
            self.said(text),
        ).ends(outcome, reason, output=text)

    def answered(self, key: str, call: Call) -> Tape:
        """The one call that a person was asked about has its result, and the model is asked again."""
        return self.add(
            self.done(call, int(key.rpartition(":")[2])),
            self.to("update_budgets", "tools_executed", 0.5),
            self.to("await_llm", "budget_ok", 0.0),
            Draft("context", {"messages": {"add": [{"done": key}]}}),
        )

    def ends(self, outcome: str, reason: str, **more: Any) -> Tape:
        return self.add(
            Draft("ended", {"outcome": outcome, "reason": reason, "at": self.at, "t": self.t, **more})
        )

    # ---- records ----

    def add(self, *drafts: Draft) -> Tape:
        self.appends.append(list(drafts))
        return self

    def to(self, dest: str, event: str, seconds: float, **more: Any) -> Draft:
        self.seq += 1
        self.at, self.t = self.at + seconds, self.t + seconds
        source, self.state = self.state, dest
        body = {"seq": self.seq, "event": event, "source": source, "dest": dest, "at": self.at, "t": self.t}
        return Draft("transition", body | more)

    def answer(self, finish: str, seconds: float) -> Draft:
        usage = {"input_tokens": 100, "output_tokens": 10, "cached_input_tokens": 40, "reasoning_tokens": 0}
        body = {"iteration": self.turn, "model": "mine", "finish_reason": finish, "seconds": seconds}
        return Draft("answer", body | {"retries": 0, "usage": usage | {"cost": None}})

    def done(self, call: Call, position: int) -> Draft:
        body = {
            "effect": "tool",
            "key": f"{self.turn}:{position}",
            "tool": call.tool,
            "outcome": call.outcome,
        }
        return Draft("done", body | {"content": call.content, "seconds": 0.5, "queued": 0.0, "cut": False})

    def said(self, text: str | None, *calls: Call) -> Draft:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [
                {"id": one.id, "type": "function", "function": {"name": one.tool, "arguments": one.arguments}}
                for one in calls
            ]
        return Draft("context", {"messages": {"add": [message]}, "iteration": self.turn})

    def digest(self, key: str) -> str:
        return hashlib.sha256(f"{self.run_id} {key}".encode()).hexdigest()

    def _answer(self, seconds: float) -> None:
        assert self.state == "await_llm", self.state
        assert seconds >= 0
        self.turn += 1


async def play(tape: Tape, journal: SqliteJournal, owner: str = "worker-1") -> Lease:
    """Write a run; whoever has the lease holds it."""
    lease = await journal.create(tape.run_id, owner, tape.created)
    for drafts in tape.appends:
        await write_records(journal, lease, *drafts)
    return lease


def record(*tapes: Tape, posts: Mapping[str, Sequence[Posted]] | None = None, path: str = JOURNAL) -> Path:
    """Make a journal of runs that nobody holds any more."""

    async def made() -> None:
        async with SqliteJournal(path) as journal:
            for tape in tapes:
                await journal.release(await play(tape, journal))
            for run_id, requests in (posts or {}).items():
                for request in requests:
                    await journal.post(run_id, request)

    asyncio.run(made())
    return Path(path)


def inbox(run_id: str, path: str = JOURNAL) -> list[Posted]:
    """Return everything that was posted for a run."""

    async def read() -> list[Posted]:
        async with SqliteJournal(path) as journal:
            return await journal.inbox(run_id)

    return asyncio.run(read())


def silence(seconds: float, path: Path | str = JOURNAL) -> None:
    """Make the last heartbeat of the only owner of runs look so old. The owner must write none meanwhile."""
    (file,) = Path(f"{path}-owners").iterdir()
    pid, ttl, _ = struct.unpack_from("<qdd", file.read_bytes())
    packed = struct.pack("<qdd", pid, ttl, time.monotonic() - seconds)
    file.write_bytes(packed + struct.pack("<I", zlib.crc32(packed)))
