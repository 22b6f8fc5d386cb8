"""Calls in flight on sessions of earlier specifications, whose servers ask in the middle of a call.

Such a request does not name the call that it belongs to. With one call in flight there is no doubt. With several, a
request waits until the others have ended or ask as well. If they belong to several runs then, it is refused: no run
is asked, or charged, for the call of another. After a server's first request, different runs share no session.

A call that asks a person stays in flight while its process lives and the person thinks. To answer the request after
the process has died is not possible: then the effect of the tool decides, and the repeated call answers the same
request with the recorded answer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from orchestrator.providers.mcp.elicitation import BadElicitation, elicit_result, input_request
from orchestrator.tools.input_request import InputAnswer, InputRequest
from orchestrator.tools.spec import ToolContext

if TYPE_CHECKING:
    from mcp.client import ClientRequestContext
    from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData

NO_CALL: Final = "no call of this client is in flight, so nobody can answer"
SEVERAL_RUNS: Final = (
    "calls of several runs are in flight, so it is unknown who must answer; call the tool again"
)


class SeveralRuns(Exception):
    """A request could belong to calls of several runs."""


class Elicitation:
    """One request of a server that waits for a person."""

    def __init__(self, request: InputRequest) -> None:
        self.request = request
        self.answer: asyncio.Future[InputAnswer] = asyncio.get_running_loop().create_future()

    def resolve(self, answer: InputAnswer) -> None:
        """Answer the server, if it still waits."""
        if not self.answer.done():
            self.answer.set_result(answer)


class LiveCall:
    """One call in flight. `asked` is set while a request of it waits for a person."""

    def __init__(self, context: ToolContext, limit: int) -> None:
        self.context: ToolContext | None = context
        """The context of the present attempt; None while the run waits for a person."""
        self.run_id = context.run_id
        self.task: asyncio.Task[CallToolResult] | None = None
        self.open: Elicitation | None = None
        self.asked = asyncio.Event()
        self._left = limit - len(context.input.earlier) if limit else None
        self._recorded: defaultdict[str, deque[InputAnswer]] = defaultdict(deque)
        self._declined: set[str] = set()
        for digest, answer in context.input.earlier:
            self._recorded[digest].append(answer)
            if answer.action == "decline":
                self._declined.add(digest)

    def take(self, elicitation: Elicitation) -> None:
        """Answer a request from the record, or ask a person. Beyond the limit of questions it is cancelled."""
        digest = elicitation.request.digest
        if recorded := self._recorded[digest]:
            elicitation.resolve(recorded.popleft())
        elif digest in self._declined:
            elicitation.resolve(InputAnswer("decline"))
        elif self._left == 0:
            elicitation.resolve(InputAnswer("cancel"))
        else:
            self._left = None if self._left is None else self._left - 1
            self.open = elicitation
            self.asked.set()

    def resolve(self, answer: InputAnswer) -> None:
        """Answer the open request with the answer of a person; a declined one is declined again without a question."""
        self.asked.clear()
        elicitation, self.open = self.open, None
        if elicitation is not None:
            if answer.action == "decline":
                self._declined.add(elicitation.request.digest)
            elicitation.resolve(answer)


class LiveCalls:
    """The calls in flight on one session."""

    def __init__(self, server: Callable[[], str], first: Callable[[], None]) -> None:
        self._server = server
        self._first = first
        self._calls: list[LiveCall] = []
        self._waiting: list[Elicitation] = []

    @property
    def runs(self) -> set[str]:
        """The runs that have a call in flight."""
        return {call.run_id for call in self._calls}

    def add(self, call: LiveCall) -> None:
        """Add a call that is sent now."""
        self._calls.append(call)

    def remove(self, call: LiveCall) -> None:
        """Remove a call that has ended, and assign the requests that waited for that."""
        self._calls.remove(call)
        if call.open is not None:
            call.open.resolve(InputAnswer("cancel"))
        self.assign()

    async def elicit(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        """Answer an elicitation of the server, when a person has answered it."""
        del context  # it names no call
        from mcp_types import INVALID_PARAMS, INVALID_REQUEST, ErrorData

        self._first()
        if not self._calls:
            return ErrorData(code=INVALID_REQUEST, message=NO_CALL)
        try:
            elicitation = Elicitation(input_request(self._server(), params))
        except BadElicitation as error:
            return ErrorData(code=INVALID_PARAMS, message=f"the elicitation is refused: {error}")
        self._waiting.append(elicitation)
        self.assign()
        try:
            return elicit_result(await elicitation.answer)
        except SeveralRuns:
            return ErrorData(code=INVALID_REQUEST, message=SEVERAL_RUNS)
        finally:
            if elicitation in self._waiting:
                self._waiting.remove(elicitation)

    def assign(self) -> None:
        """Give the waiting requests to the calls, once there is no doubt about their run."""
        free = [call for call in self._calls if call.open is None]
        if len(self._waiting) < len(free):
            return
        if len(self.runs) > 1:
            for one in self._waiting:
                one.answer.set_exception(SeveralRuns())
            self._waiting.clear()
            return
        for call in free:
            while self._waiting and call.open is None:
                call.take(self._waiting.pop(0))
