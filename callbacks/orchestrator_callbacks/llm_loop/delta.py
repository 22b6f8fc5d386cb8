"""The answer of the model in pieces, for the follower of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.kernel.record import Follower
from orchestrator.llm.message import ArgumentsPiece, ReasoningPiece, Request, Response, encodable
from orchestrator.llm.run_event import (
    ModelRequestRetried,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
)
from orchestrator_callbacks.llm_loop.call_scope import complete_once
from orchestrator_callbacks.llm_loop.deps import LoopRun


class DeltaStream:
    """Requests one answer from the model in as many attempts as needed, and passes on its pieces meanwhile.

    Each attempt has its own listener. A piece that an adapter delivers after the end of its attempt is dropped,
    because the follower already knows that the answer starts again.
    """

    def __init__(self, run: LoopRun, follower: Follower) -> None:
        self._run = run
        self._follower = follower
        self._attempt = 0
        self._speaks = False
        self._began = 0.0
        self._first: float | None = None
        self.arrived = 0
        """Characters of the answer that the attempt has delivered."""

    async def complete(self, request: Request) -> Response:
        """Make one attempt. A listener that a host's hook set on the request gets the pieces as well."""
        attempt = self._attempt = self._attempt + 1
        self.arrived = 0
        host, host_piece = request.on_delta, request.on_piece

        def on_delta(text: str) -> None:
            if host is not None:
                host(text)
            if text and self._speaks and attempt == self._attempt:
                self._said(text)

        def on_piece(piece: ReasoningPiece | ArgumentsPiece) -> None:
            if host_piece is not None:
                host_piece(piece)
            if piece.text and self._speaks and attempt == self._attempt:
                self._other(piece)

        self._speaks, self._began = True, self._run.deps.clock.monotonic()
        try:
            run = self._run
            followed = replace(request, on_delta=on_delta, on_piece=on_piece)
            return await complete_once(run, run.deps.llm, run.deps.model, followed)
        finally:
            self._speaks = False

    def take_first(self) -> float | None:
        """Return, once, the seconds from the start of the attempt to its first piece; None without one."""
        first, self._first = self._first, None
        return first

    def retried(self, number: int, reason: str, delay: float) -> None:
        """Report that an attempt failed and another one follows."""
        members = self._members() | {"attempt": number}
        self._follower(ModelRequestRetried(**members, reason=reason, delay=delay))

    def answer_refused(self, reason: str) -> None:
        """Report that the last answer could not be used and is requested again."""
        ctx = self._run.ctx
        members = self._members() | {"iteration": ctx.iteration, "attempt": ctx.completion.retries}
        self._follower(ModelRequestRetried(**members, reason=reason))

    def _said(self, text: str) -> None:
        self._note_piece(text)
        self._follower(TextDelta(**self._members(), text=encodable(text)))

    def _other(self, piece: ReasoningPiece | ArgumentsPiece) -> None:
        self._note_piece(piece.text)
        members, text = self._members(), encodable(piece.text)
        if isinstance(piece, ReasoningPiece):
            self._follower(ReasoningDelta(**members, text=text))
        else:
            tool = encodable(piece.tool)
            self._follower(ToolArgumentsDelta(**members, position=piece.position, tool=tool, text=text))

    def _note_piece(self, text: str) -> None:
        self.arrived += len(text)
        if self._first is None:
            self._first = self._run.deps.clock.monotonic() - self._began

    def _members(self) -> dict[str, Any]:
        run = self._run
        iteration, at = run.ctx.iteration + 1, run.deps.clock.time()
        return {"run_id": run.run_id, "iteration": iteration, "attempt": self._attempt, "at": at}
