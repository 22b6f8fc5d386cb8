"""Text of the model in chunks, for the follower of a run."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.kernel.record import Follower, TokenDelta
from orchestrator.llm.message import Request, Response, encodable
from orchestrator_callbacks.llm_loop.deps import LoopRun, ask_model


class DeltaStream:
    """Requests one answer from the model in as many attempts as needed, and passes on its text meanwhile.

    Each attempt has its own listener. Text that an adapter delivers after the end of its attempt is dropped, because
    the follower already knows that the answer starts again.
    """

    def __init__(self, run: LoopRun, follower: Follower) -> None:
        self._run = run
        self._follower = follower
        self._attempt = 0
        self._speaks = False
        self._began = 0.0
        self._first: float | None = None

    async def complete(self, request: Request) -> Response:
        """Make one attempt. A listener that a host's hook set on the request gets the text as well."""
        attempt = self._attempt = self._attempt + 1
        host = request.on_delta

        def on_delta(text: str) -> None:
            if host is not None:
                host(text)
            if text and self._speaks and attempt == self._attempt:
                self._said(text)

        self._speaks, self._began = True, self._run.deps.clock.monotonic()
        try:
            return await ask_model(self._run, replace(request, on_delta=on_delta))
        finally:
            self._speaks = False

    def take_first(self) -> float | None:
        """Return, once, the seconds from the start of the attempt to its first text; None without text."""
        first, self._first = self._first, None
        return first

    def _said(self, text: str) -> None:
        run = self._run
        if self._first is None:
            self._first = run.deps.clock.monotonic() - self._began
        iteration = run.ctx.iteration + 1
        self._follower(TokenDelta(run.graph.name, run.run_id, iteration, self._attempt, encodable(text)))
