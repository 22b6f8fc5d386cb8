"""The tools of a server: compared with those that the host allowed, and called, with the input that a call needs.

A server of 2026-07-28 returns its requests in place of a result (`input_required`). They become questions to a person
by InputRequired, and the call that follows has the answers and the server's own state. A server of an earlier
specification asks in the middle of the call, which then stays in flight (`LiveCall`). Its sampling requests go to
the model of the run in the task of the call, so they are stopped with it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from orchestrator.errors import ResultUnreadable
from orchestrator.providers.mcp.answer import CallRefused, SessionLost, ToolDisabled
from orchestrator.providers.mcp.offer import (
    NAME_CHARS,
    NotOffered,
    ServerTool,
    ToolChoice,
    clean,
    declared,
    digest_of,
)
from orchestrator.providers.mcp.options import Pins
from orchestrator.providers.mcp.server_request import (
    BadElicitation,
    CallSampling,
    LiveCall,
    Sampling,
    elicit_result,
    input_request,
    json_data,
    sampled,
)
from orchestrator.providers.mcp.session import McpSession, SessionPool, Unreachable
from orchestrator.tools.input_request import EffectUnknown, InputAnswer, InputRequired
from orchestrator.tools.input_request import InputRequest as PersonRequest
from orchestrator.tools.spec import REPEATABLE, ToolContext, ToolSpec

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult, CreateMessageRequestParams, InputRequest, InputRequiredResult, Tool


class ToolList:
    """The offered and the disabled tools of one server. `make` builds the tool of an offer."""

    def __init__(
        self,
        name: str,
        choice: ToolChoice,
        options: Mapping[str, Any],
        make: Callable[[ServerTool], ToolSpec | None],
    ) -> None:
        self.tools: tuple[ToolSpec, ...] | None = None
        """The allowed tools; None before the first list."""
        self.digests: Mapping[str, str] = {}
        """Digest of each listed tool, by the server's own names."""
        self.disabled: frozenset[str] = frozenset()
        """Names of the tools that differ from the allowed ones."""
        self._name = name
        self._choice = choice
        self._options = options
        self._make = make
        self._pins: Pins | Callable[[], Pins] = {}
        self._allowed: Pins = {}
        """The pins of the last comparison."""
        self._listed: tuple[Tool, ...] = ()
        self._own: tuple[ToolSpec, ...] = ()
        self._made: dict[str, tuple[ServerTool, ToolSpec | None]] = {}
        self._reported: set[NotOffered] = set()

    def start(self, name: str, tools: Iterable[Tool], own: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Take the first list of a connection; `own` are tools of ours about this server. Return the allowed ones."""
        listed = tuple(tools)
        self._name, self._own = name, tuple(own)
        pins = cast("Pins | Callable[[], Pins] | None", self._options.get("pins"))
        self._pins = {tool.name: digest_of(tool) for tool in listed} if pins is None else pins
        self.disabled, self._reported = frozenset(), set()
        return self.compare(listed)

    def compare(self, tools: Iterable[Tool]) -> tuple[ToolSpec, ...]:
        """Offer the tools of a list that are as they were allowed; disable and report the others."""
        listed = self._listed = tuple(tools)
        offers, without = declared(listed, self._choice)
        for one in without:
            self.leave_out(one)
        self.digests = {tool.name: digest_of(tool) for tool in listed}
        pins = self._allowed = self._present_pins()
        disabled = {offer.theirs for offer in offers if pins.get(offer.theirs) != self.digests[offer.theirs]}
        for name in sorted(disabled - self.disabled):
            change = (
                "has changed since it was allowed" if name in pins else "is new since its tools were allowed"
            )
            sentence = (
                f"tool {clean(name, NAME_CHARS)!r} of MCP server {self._name!r} {change}, so it is disabled"
            )
            on_disabled = self._options.get("on_disabled")
            if on_disabled is not None:
                on_disabled(sentence)
            else:
                _log.warning("%s", sentence)
        self.disabled = frozenset(disabled)
        made = [self._tool(offer) for offer in offers if offer.theirs not in disabled]
        taken = {offer.name for offer in offers}
        own = (spec for spec in self._own if spec.name not in taken)
        self.tools = (*(spec for spec in made if spec is not None), *own)
        return self.tools

    def refresh(self) -> None:
        """Compare the last list again if the host allows other tools now."""
        if self.tools is not None and self._allowed != self._present_pins():
            self.compare(self._listed)

    def _present_pins(self) -> Pins:
        return dict(self._pins() if callable(self._pins) else self._pins)

    def leave_out(self, one: NotOffered) -> None:
        """Log, once for each connection, that a tool cannot be offered."""
        if one in self._reported:
            return
        self._reported.add(one)
        name = clean(one.theirs, NAME_CHARS)
        _log.warning("MCP server %r: tool %r is not offered: %s", self._name, name, one.why)

    def _tool(self, offer: ServerTool) -> ToolSpec | None:
        """Return the tool of an offer; the same one as long as the offer is the same."""
        known = self._made.get(offer.theirs)
        if known is None or known[0] != offer:
            known = self._made[offer.theirs] = offer, self._make(offer)
        return known[1]


_log = logging.getLogger("orchestrator.mcp")

_PROGRESS_CHARS: Final = 200
_STATE_CHARS: Final = 64 * 1024
_POLL: Final = 0.25
"""Seconds before a call is repeated for a server that returned only its state."""
_ROUNDS: Final = 1_000
"""Most requests of one call; its timeout ends it earlier, unless reports of progress start that again."""
_MOST_WAITING: Final = 32
"""Most calls of one server that wait for a person in flight; beyond it the oldest one is cancelled."""
_REQUEST: Final = "elicitation"
"""Name of the one request of a round of a live call."""
_REJECTED: Final = "a person rejected the request of the server to the model"


class ToolCaller:
    """Calls the tools of one server."""

    def __init__(
        self, pool: SessionPool, disabled: Callable[[], Collection[str]], timeout: float, questions: int
    ) -> None:
        self._pool = pool
        self._disabled = disabled
        self._timeout = timeout
        self._questions = questions
        self._waiting: dict[str, LiveCall] = {}

    async def call(
        self, context: ToolContext, offer: ServerTool, arguments: dict[str, Any]
    ) -> CallToolResult:
        """Call a tool on the open session, or on one new session.

        Raises InputRequired, EffectUnknown, SessionLost, ToolDisabled, CallRefused, ResultUnreadable, TimeoutError.
        """
        state = context.input.state or {}
        if state.get("live") and not context.input.again:
            held = self._waiting.pop(context.idempotency_key, None)
            if held is not None and (result := await self._continued(context, held)) is not None:
                return result
            if offer.effect not in REPEATABLE:
                raise EffectUnknown("the call was interrupted while it waited for a person; it may have run")
        session, is_new = await self._open(context, offer)
        try:
            return await self._send(session, context, offer, arguments)
        except SessionLost:
            if is_new or offer.effect not in REPEATABLE:
                raise
        session, _ = await self._open(context, offer)
        return await self._send(session, context, offer, arguments)

    async def stop(self) -> None:
        """Cancel the calls that wait for a person."""
        for held in [*self._waiting.values()]:
            await _cancelled(held)
        self._waiting.clear()

    async def _open(self, context: ToolContext, offer: ServerTool) -> tuple[McpSession, bool]:
        """Return a session on which the tool is unchanged. Raises SessionLost and ToolDisabled."""
        try:
            found = await self._pool.session_of(context.run_id)
        except Unreachable as error:
            # The reason is for the operator of the server: it names commands and quotes their output.
            _log.warning("%s", error)
            name = self._pool.name
            raise SessionLost(f"MCP server {name!r} cannot be reached; the call was not sent") from error
        if offer.theirs in self._disabled():
            raise ToolDisabled(
                "the tool has changed at its server since it was allowed; the call was not sent"
            )
        return found

    async def _send(
        self, session: McpSession, context: ToolContext, offer: ServerTool, arguments: dict[str, Any]
    ) -> CallToolResult:
        if session.is_modern:
            return await self._with_input(session, context, offer, arguments)
        live = LiveCall(context, self._questions, session.live_calls.rules.most)
        live.task = asyncio.ensure_future(
            self._in_flight(session, live, offer, arguments, self._seconds(context))
        )
        session.live_calls.add(live)
        live.task.add_done_callback(lambda done: _ended(session, live, done))
        return await self._followed(context, live)

    async def _in_flight(
        self,
        session: McpSession,
        live: LiveCall,
        offer: ServerTool,
        arguments: dict[str, Any],
        seconds: float,
    ) -> CallToolResult:
        from mcp_types import CallToolResult

        on_progress = _progress(lambda: live.context)
        result = await session.call(offer.theirs, arguments, seconds, on_progress)
        if not isinstance(result, CallToolResult):
            raise CallRefused("the server requests input in a way that its protocol does not have")
        return result

    def _seconds(self, context: ToolContext) -> float:
        """Return the timeout of one request: the tool set measures it, because it can be started again there."""
        return self._timeout if context.deadline is None else math.inf

    # ---- earlier specifications: the server asks within the call ----

    async def _followed(self, context: ToolContext, live: LiveCall) -> CallToolResult:
        """Return the result of a call in flight, with its requests to the model. Raises InputRequired for a person."""
        assert live.task is not None  # noqa: S101 - for type checkers
        try:
            while await _asks(live) and isinstance(one := live.open, Sampling) and one.is_allowed:
                live.reply(one, await sampled(context, one.request))
        except BaseException:
            await _cancelled(live)
            raise
        if live.task.done() or live.open is None:
            return await live.task
        assert live.open.question is not None  # noqa: S101 - for type checkers
        live.context = None
        self._waiting[context.idempotency_key] = live
        if len(self._waiting) > _MOST_WAITING:
            await _cancelled(self._waiting.pop(next(iter(self._waiting))))
        raise InputRequired({_REQUEST: live.open.question}, {"live": True})

    async def _continued(self, context: ToolContext, live: LiveCall) -> CallToolResult | None:
        """Answer the request of a call in flight, and return its result.

        None if the call ended before a person answered, because its session was lost or its server gave up.
        """
        assert live.task is not None  # noqa: S101 - for type checkers
        if live.task.done():
            error = None if live.task.cancelled() else live.task.exception()
            if isinstance(error, ResultUnreadable):
                raise error
            result = None if live.task.cancelled() or error else live.task.result()
            return None if result is None or result.is_error else result
        live.context = context
        live.resolve(context.input.answers.get(_REQUEST, InputAnswer("cancel")))
        return await self._followed(context, live)

    # ---- 2026-07-28: the server returns its requests ----

    async def _with_input(
        self, session: McpSession, context: ToolContext, offer: ServerTool, arguments: dict[str, Any]
    ) -> CallToolResult:
        """Call a tool, with the answers of people to the requests that it returned. Raises InputRequired."""
        from mcp_types import InputRequiredResult

        kept = context.input.state or {}
        sampling = CallSampling(context, self._pool.sampling, self._pool.name, kept.get("sampled", 0))
        # The responses to the requests of the last round, after its questions. Raises CallRefused.
        from mcp_types import CreateMessageRequestParams

        given = dict(kept.get("responses", {}))
        for name, answer in context.input.answers.items():
            asked = kept.get("sampling", {}).get(name)
            if asked is None:
                given[name] = elicit_result(answer)
            elif answer.action == "accept":
                given[name] = await sampling.response(CreateMessageRequestParams.model_validate(asked))
            else:
                raise CallRefused(_REJECTED)
        responses: dict[str, Any] | None = given or None
        state: str | None = kept.get("request_state")
        async with asyncio.timeout(None if context.deadline is not None else self._timeout):
            for _ in range(_ROUNDS):
                result = await session.call(
                    offer.theirs,
                    arguments,
                    self._seconds(context),
                    _progress(lambda: context),
                    responses,
                    state,
                )
                if not isinstance(result, InputRequiredResult):
                    return result
                state = result.request_state
                responses = await self._responses(context, result, sampling)
        raise CallRefused(f"the server gave no result in {_ROUNDS:,} rounds")

    async def _responses(
        self, context: ToolContext, result: InputRequiredResult, sampling: CallSampling
    ) -> dict[str, Any] | None:
        """Return the responses to a server's requests; None if it has none. Raises InputRequired, CallRefused."""
        if len(result.request_state or "") > _STATE_CHARS:
            raise CallRefused(f"the server's state has more than {_STATE_CHARS:,} characters")
        if not result.input_requests:
            await asyncio.sleep(_POLL)
            return None
        samples = {} if sampling.mode == "deny" else _samples(result.input_requests)
        allowed = samples if sampling.mode == "allow" else {}
        asked = {
            name: sampling.question(samples[name]) if name in samples else self._request(one)
            for name, one in result.input_requests.items()
            if name not in allowed
        }
        if self._questions and len(context.input.earlier) + len(asked) > self._questions:
            raise CallRefused(f"the server asks more often than max_questions={self._questions} in one call")
        responses = {name: await sampling.response(params) for name, params in allowed.items()}
        declined = {digest for digest, one in context.input.earlier if one.action == "decline"}
        # The same question again after a no is no question.
        responses |= {name: {"action": "decline"} for name, one in asked.items() if one.digest in declined}
        if (samples.keys() - allowed.keys()) & responses.keys():
            raise CallRefused(_REJECTED)
        if requests := {name: one for name, one in asked.items() if name not in responses}:
            kept = {name: json_data(params) for name, params in samples.items() if name in requests}
            state = {"request_state": result.request_state, "responses": responses}
            raise InputRequired(requests, state | {"sampling": kept, "sampled": sampling.count})
        return responses

    def _request(self, asked: InputRequest) -> PersonRequest:
        """Return a request of the server as a question to a person. Raises CallRefused."""
        from mcp_types import ElicitRequest

        if not isinstance(asked, ElicitRequest):
            raise CallRefused(f"the server requests {asked.method}, which this client does not offer")
        try:
            return input_request(self._pool.name, asked.params)
        except BadElicitation as error:
            raise CallRefused(f"the server asks for input in a way that is refused: {error}") from error


def _samples(requests: Mapping[str, InputRequest]) -> dict[str, CreateMessageRequestParams]:
    """Return the sampling requests among the requests of a server."""
    from mcp_types import CreateMessageRequest

    return {name: one.params for name, one in requests.items() if isinstance(one, CreateMessageRequest)}


def _progress(context: Callable[[], ToolContext | None]) -> ProgressFnT:
    """Return the callback for reports of progress, which start the timeout of the present attempt again."""

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        if (present := context()) is not None:
            present.restart_timeout()
            part = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
            present.progress(clean(f"{part}: {message}" if message else part, _PROGRESS_CHARS))

    return on_progress


async def _asks(live: LiveCall) -> bool:
    """Wait until a call in flight has a request, or has ended; return whether it has a request."""
    assert live.task is not None  # noqa: S101 - for type checkers
    asked = asyncio.ensure_future(live.asked.wait())
    try:
        await asyncio.wait((live.task, asked), return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
    return not live.task.done() and live.open is not None


def _ended(session: McpSession, live: LiveCall, task: asyncio.Task[CallToolResult]) -> None:
    session.live_calls.remove(live)
    if not task.cancelled():
        task.exception()  # it is read when the run asks again, if that happens


async def _cancelled(live: LiveCall) -> None:
    """Cancel a call in flight, and wait for its end."""
    if live.task is not None:
        live.task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await live.task
