"""Calls in flight on sessions of earlier specifications, whose servers ask in the middle of a call.

Such a request does not name the call that it belongs to. With one call in flight there is no doubt. With several, a
request waits until the others have ended or ask as well. If they belong to several runs then, it is refused: no run
is asked, or charged, for the call of another. After a server's first request, different runs share no session.

A sampling request goes to the model of the run in the task of its call (`tool_call`), one after the other.

A call that asks a person stays in flight while its process lives and the person thinks. To answer the request after
the process has died is not possible: then the effect of the tool decides, and the repeated call answers the same
request with the recorded answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from orchestrator.providers.mcp.answer import Reader
from orchestrator.providers.mcp.server_request import (
    TOO_MANY,
    BadElicitation,
    BadSampling,
    SamplingRules,
    elicit_result,
    input_request,
    rejected,
    sampling_request,
)
from orchestrator.tools.input_request import InputAnswer, InputRequest
from orchestrator.tools.sampling import SamplingRequest
from orchestrator.tools.spec import ToolContext

if TYPE_CHECKING:
    from mcp.client import ClientRequestContext
    from mcp.client.session import SamplingFnT
    from mcp_types import (
        CallToolResult,
        CreateMessageRequestParams,
        CreateMessageResult,
        ElicitRequestParams,
        ElicitResult,
        ErrorData,
    )

NO_CALL: Final = "no call of this client is in flight, so nobody can answer"
SEVERAL_RUNS: Final = (
    "calls of several runs are in flight, so it is unknown who must answer; call the tool again"
)

_MOST_WAITING: Final = 100

T = TypeVar("T")


class SeveralRuns(Exception):
    """A request could belong to calls of several runs."""


class Elicitation:
    """One request of a server that waits for a person."""

    is_allowed = False
    """Whether the model may answer it."""

    def __init__(self, question: InputRequest) -> None:
        self.question = question
        self.answer: asyncio.Future[InputAnswer] = asyncio.get_running_loop().create_future()

    def resolve(self, answer: InputAnswer) -> None:
        """Answer the server, if it still waits."""
        if not self.answer.done():
            self.answer.set_result(answer)


class Sampling:
    """One request of a server that waits for the model, or first for a person who allows it."""

    def __init__(self, request: SamplingRequest, question: InputRequest | None) -> None:
        self.request = request
        self.question = question
        """The question to the person; None if nobody is asked."""
        self.is_allowed = question is None
        self.answer: asyncio.Future[CreateMessageResult | ErrorData] = (
            asyncio.get_running_loop().create_future()
        )

    def resolve(self, answer: InputAnswer) -> None:
        """Allow or reject the request, as a person decided."""
        self.is_allowed = answer.action == "accept"
        if not self.is_allowed:
            self.reply(rejected())

    def reply(self, reply: CreateMessageResult | ErrorData) -> None:
        """Answer the server, if it still waits."""
        self.is_allowed = False
        if not self.answer.done():
            self.answer.set_result(reply)


ServerRequest: TypeAlias = Elicitation | Sampling


class LiveCall:
    """One call in flight. `asked` is set while a request of it waits for a person or for the model.

    `limit` bounds its questions, `sampling` its requests to the model; 0 is no limit.
    """

    def __init__(self, context: ToolContext, limit: int, sampling: int = 0) -> None:
        self.context: ToolContext | None = context
        """The context of the present attempt; None while the run waits for a person."""
        self.run_id = context.run_id
        self.reads = context.reads
        self.task: asyncio.Task[CallToolResult] | None = None
        self.open: ServerRequest | None = None
        self.asked = asyncio.Event()
        self.freed: Callable[[], None] = lambda: None
        """Called when the call can take a further request."""
        self._samples_left = sampling or None
        self._samples = Counter[str]()
        """Digest -> equal requests to the model so far."""
        self._left = limit - len(context.input.earlier) if limit else None
        self._recorded: defaultdict[str, deque[InputAnswer]] = defaultdict(deque)
        self._declined: set[str] = set()
        for digest, answer in context.input.earlier:
            self._recorded[digest].append(answer)
            if answer.action == "decline":
                self._declined.add(digest)

    def take(self, request: ServerRequest) -> None:
        """Answer a request from the record, or open it for a person or the model. Refuse it beyond a limit."""
        if isinstance(request, Sampling) and not self._may_sample(request):
            return
        if request.question is None:
            self._open(request)
        elif recorded := self._recorded[request.question.digest]:
            self._settle(request, recorded.popleft())
        elif request.question.digest in self._declined:
            request.resolve(InputAnswer("decline"))
        elif self._left == 0:
            request.resolve(InputAnswer("cancel"))
        else:
            self._left = None if self._left is None else self._left - 1
            self._open(request)

    def resolve(self, answer: InputAnswer) -> None:
        """Answer the open request with the answer of a person; a declined one is declined again without a question."""
        request = self.close()
        if request is None:
            return
        if request.question is not None and answer.action == "decline":
            self._declined.add(request.question.digest)
        self._settle(request, answer)
        if self.open is None:
            self.freed()

    def reply(self, request: Sampling, reply: CreateMessageResult | ErrorData) -> None:
        """Answer a request to the model."""
        request.reply(reply)
        self._free(request)

    def drop(self, request: ServerRequest) -> None:
        """Forget a request to the model that the server has withdrawn."""
        if request.is_allowed:
            self._free(request)

    def close(self) -> ServerRequest | None:
        """Take the open request from the call, and return it."""
        self.asked.clear()
        request, self.open = self.open, None
        return request

    def _free(self, request: ServerRequest) -> None:
        if self.open is request:
            self.close()
            self.freed()

    def _open(self, request: ServerRequest) -> None:
        self.open = request
        self.asked.set()

    def _settle(self, request: ServerRequest, answer: InputAnswer) -> None:
        """Pass the answer of a person on; a request that was allowed waits for the model next."""
        request.resolve(answer)
        if request.is_allowed:
            self._open(request)

    def _may_sample(self, sampling: Sampling) -> bool:
        if self._samples_left == 0:
            from mcp_types import INVALID_REQUEST, ErrorData

            too_many = ErrorData(code=INVALID_REQUEST, message=TOO_MANY)
            sampling.reply(too_many)
            return False
        self._samples_left = None if self._samples_left is None else self._samples_left - 1
        self._samples[sampling.request.digest] += 1
        if (number := self._samples[sampling.request.digest]) > 1:
            sampling.request = replace(sampling.request, key=str(number))
        return True


class LiveCalls:
    """The calls in flight on one session."""

    def __init__(
        self,
        server: Callable[[], str],
        first: Callable[[], None],
        rules: SamplingRules = SamplingRules(),  # noqa: B008 - a tuple
    ) -> None:
        self.rules = rules
        self._server = server
        self._first = first
        self._calls: list[LiveCall] = []
        self._waiting: list[ServerRequest] = []

    @property
    def sampler(self) -> SamplingFnT | None:
        """The callback for sampling requests; None if the host does not allow them, so that they are not offered."""
        return None if self.rules.mode == "deny" else self.sample

    @property
    def runs(self) -> set[str]:
        """The runs that have a call in flight."""
        return {call.run_id for call in self._calls}

    def add(self, call: LiveCall) -> None:
        """Add a call that is sent now."""
        self._calls.append(call)
        call.freed = self.assign

    def remove(self, call: LiveCall) -> None:
        """Remove a call that has ended, and assign the requests that waited for that."""
        self._calls.remove(call)
        if (request := call.close()) is not None:
            request.resolve(InputAnswer("cancel"))
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
        answer = await self._answered(elicitation, elicitation.answer)
        return elicit_result(answer) if isinstance(answer, InputAnswer) else answer

    async def sample(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        """Answer a sampling request of the server, when the model has answered it."""
        del context  # it names no call
        from mcp_types import INVALID_PARAMS, INVALID_REQUEST, ErrorData

        self._first()
        if not self._calls:
            return ErrorData(code=INVALID_REQUEST, message=NO_CALL)
        try:
            request = sampling_request(params, Reader(self._calls[0].reads, self.rules.max_bytes))
        except BadSampling as error:
            return ErrorData(code=INVALID_PARAMS, message=f"the sampling request is refused: {error}")
        sampling = Sampling(request, self.rules.question(self._server(), request))
        return await self._answered(sampling, sampling.answer)

    async def _answered(self, request: ServerRequest, answer: asyncio.Future[T]) -> T | ErrorData:
        """Give a request to its call, and return the answer."""
        from mcp_types import INVALID_REQUEST, ErrorData

        if len(self._waiting) >= _MOST_WAITING:
            return ErrorData(code=INVALID_REQUEST, message="too many requests of this server wait already")
        self._waiting.append(request)
        self.assign()
        try:
            return await answer
        except SeveralRuns:
            return ErrorData(code=INVALID_REQUEST, message=SEVERAL_RUNS)
        finally:
            if request in self._waiting:
                self._waiting.remove(request)
            for call in self._calls:
                call.drop(request)

    def assign(self) -> None:
        """Give the waiting requests to the calls, once there is no doubt about their run."""
        free = [call for call in self._calls if call.open is None]
        several = len(self.runs) > 1
        ready = [*self._waiting]
        if len(ready) < len(free):
            # The model answers for the run, whichever of its calls asks; a person answers a call.
            ready = [] if several else [one for one in ready if one.is_allowed]
        elif several:
            for one in ready:
                if not one.answer.done():
                    one.answer.set_exception(SeveralRuns())
            self._waiting.clear()
            return
        for call in free:
            while ready and call.open is None:
                self._waiting.remove(one := ready.pop(0))
                call.take(one)
