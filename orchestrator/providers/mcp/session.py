"""Sessions with one server: each lives in its own task, from its first byte to its last.

The SDK's sessions hold task groups of anyio, which the task that entered them must leave. So no caller may enter one:
calls run in tasks of their own and are cancelled there. A SessionPool starts the tasks, and its `stop` joins them.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.errors import ResultUnreadable
from orchestrator.providers.mcp.answer import CallRefused, SessionLost, has_resources
from orchestrator.providers.mcp.offer import clean
from orchestrator.providers.mcp.server_request import LiveCalls, SamplingRules
from orchestrator.providers.mcp.transport import (
    FromServer,
    Http,
    LogLines,
    Stdio,
    Unanswered,
    leaf_of,
    unreadable_answer,
)

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult, InputRequiredResult, Tool

_log = logging.getLogger("orchestrator.mcp")

_GOODBYE = 5.0
"""Seconds that an address may take to end a session. A program has the SDK's six: asked, terminated, killed."""
_ALIVE = 3.0
"""Seconds in which a server that left a call without an answer must answer another request."""
_PAGES = 50
_MODERN = "2026-07-28"
_TOOLS = 1_000
_SAID_CHARS = 500

T = TypeVar("T")

Listed = Callable[[Sequence["Tool"]], object]


class Unreachable(Exception):
    """No session could be opened; the message is a sentence for the person who configured the server."""


class McpSession:
    """One session. `over` ends it; after `retired` it accepts no new call and ends with its last one.

    `listed` receives the tools each time the server lists them.
    """

    def __init__(
        self, transport: Stdio | Http, seconds: float, listed: Listed | None, live: LiveCalls
    ) -> None:
        import anyio

        self.ready: asyncio.Future[Unreachable | None] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self.retired = False
        self.tools: tuple[Tool, ...] = ()
        self.has_resources = False
        self.server_name = ""
        """The name that the server gives itself; empty if it gives none."""
        self._transport = transport
        self._seconds = seconds
        self.listed = listed
        self.live_calls = live
        """The calls in flight whose server may ask within the call."""
        self._client: Client | None = None
        self._name: Callable[[], str] = str
        self._in_flight = 0
        self._doubted = False
        self._announced = self._compared = 0
        self._scope = anyio.CancelScope()

    @property
    def usable(self) -> bool:
        return not (self.retired or self.over.is_set())

    @property
    def is_modern(self) -> bool:
        """Whether its server returns its requests in place of a result, as of 2026-07-28."""
        return self._client is not None and self._client.protocol_version >= _MODERN

    def serves(self, run_id: str) -> bool:
        """Return whether no other run has a call in flight."""
        return self.live_calls.runs <= {run_id}

    def end(self) -> None:
        """Ask the session to end; its task does it."""
        if not self.ready.done():
            self._scope.cancel()
        self.over.set()

    async def answers(self) -> bool:
        """Return whether the server still answers.

        It is asked for its tools only after a call without an answer, and after it announced a change of them.
        """
        announced = self._announced
        if (self._doubted or self._compared < announced) and (client := self._client) is not None:
            try:
                async with asyncio.timeout(_ALIVE):
                    tools = await self._all_tools(client)
            except Exception:  # noqa: BLE001  after any error another session is better
                self._retire()
            else:
                self._doubted = False
                self._compared = max(self._compared, announced)
                if self.listed is not None:
                    self.listed(tools)
        return self.usable

    def _retire(self) -> None:
        self.retired = True
        if not self._in_flight:
            self.over.set()

    async def live(self, name: Callable[[], str]) -> None:
        """Connect, list the tools, wait until the session is over, disconnect. Raises only a cancellation."""
        import anyio

        self._name = name
        why = "it was closed"
        try:
            with self._scope:
                self._scope.deadline = anyio.current_time() + self._seconds
                await self._open_and_wait(name)
            if self._scope.cancelled_caught and not self.over.is_set():
                why = f"it gave no answer within {self._seconds:g} s"
        except Exception as error:  # noqa: BLE001  a transport can fail in any way
            why = self._transport.why(error)
            if self.ready.done():
                _log.info("the session with MCP server %r ended: %s", name(), why)
        finally:
            self.over.set()
            self._client = None
            if not self.ready.done():
                self.ready.set_result(Unreachable(f"MCP server {name()!r} cannot be used: {why}"))

    async def _open_and_wait(self, name: Callable[[], str]) -> None:
        import anyio
        from mcp import Client

        async def on_message(message: object) -> None:
            if getattr(message, "method", "") == "notifications/tools/list_changed":
                self._announce(name)

        written = LogLines(name, self._transport.mask)
        async with Client(
            self._transport.opened(name, self.over.set),
            read_timeout_seconds=self._seconds,
            message_handler=on_message,
            logging_callback=written.take,
            elicitation_callback=self.live_calls.elicit,
            sampling_callback=self.live_calls.sampler,
            log_level="info",
            cache=None,
        ) as client:
            if client.server_info is not None:
                self.server_name = client.server_info.name
            self.tools = await self._all_tools(client)
            # Whether resources can be offered: a server that cannot list them has none for us.
            from mcp import MCPError

            try:
                self.has_resources = await has_resources(client)
            except MCPError:
                self.has_resources = False
            if self.listed is not None:
                self.listed(self.tools)
            self._client = client
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._subscribe, client, name)
                self._scope.deadline = math.inf
                self.ready.set_result(None)
                await self.over.wait()
                tasks.cancel_scope.cancel()
            self._client = None
            self._scope.deadline = anyio.current_time() + _GOODBYE

    def _announce(self, name: Callable[[], str]) -> None:
        self._announced += 1
        _log.info("MCP server %r announces other tools; the next turn compares them", name())

    async def _subscribe(self, client: Client, name: Callable[[], str]) -> None:
        """Ask for log lines and for announcements of other tools, in the way of the server's protocol."""
        from mcp.client.subscriptions import ListenNotSupportedError

        capabilities = client.server_capabilities
        try:
            if capabilities.tools is not None and capabilities.tools.list_changed:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._announce(name)
        except ListenNotSupportedError:
            if capabilities.logging is not None:
                with suppress(Exception):  # the lines are not worth a session
                    await client.session.set_logging_level("info")
        except Exception as error:  # noqa: BLE001  a server may refuse or drop a subscription
            _log.info("MCP server %r sends no announcements: %s", name(), clean(str(error), _SAID_CHARS))

    async def call(  # noqa: PLR0917 - the parts of one request
        self,
        name: str,
        arguments: dict[str, Any],
        seconds: float,
        on_progress: ProgressFnT | None = None,
        responses: dict[str, Any] | None = None,
        state: str | None = None,
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool, with responses to the requests of its server and the state of it. Raises as `request` does."""
        from mcp import MCPError
        from mcp_types import HEADER_MISMATCH

        async def send(client: Client) -> CallToolResult | InputRequiredResult:
            return await client.session.call_tool(
                name,
                arguments,
                seconds,
                on_progress,
                input_responses=responses,
                request_state=state,
                allow_input_required=True,
            )

        async def send_listed(client: Client) -> CallToolResult | InputRequiredResult:
            try:
                return await send(client)
            except MCPError as error:
                if error.code != HEADER_MISMATCH:
                    raise
                await self._all_tools(
                    client
                )  # the schema that names the headers has changed since it was listed
                return await send(client)

        return await self.request(send_listed, seconds, runs=True)

    async def request(
        self, send: Callable[[Client], Awaitable[T]], seconds: float, *, runs: bool = False
    ) -> T:
        """Send a request. Raises TimeoutError, CallRefused and SessionLost; a cancellation cancels the request.

        With `runs` an answer means that a tool ran: one that cannot be read raises ResultUnreadable.
        """
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        if (client := self._client) is None:
            raise SessionLost("the session was closed before the call could be sent")
        self._in_flight += 1
        masked = self._transport.mask.masked
        try:
            return await send(client)
        except asyncio.CancelledError:
            self._doubted = True  # after its timeout the state of the server is unknown
            raise
        except Exception as error:
            code = error.code if isinstance(error, MCPError) else None
            if runs and (unread := unreadable_answer(error)) is not None:
                raise ResultUnreadable(f"the server's answer cannot be read: {masked(unread)}") from error
            if runs and isinstance(error, MCPError) and isinstance(error.data, Unanswered):
                self._doubted = True
                unknown = f"the tool's server gave no result ({masked(error.data.got)}); whether it ran is not known"
                raise SessionLost(unknown) from error
            if isinstance(error, MCPError) and isinstance(error.data, FromServer):
                code = None  # the same codes are the SDK's own
            elif code == CONNECTION_CLOSED or self.over.is_set():
                self.retired = True
                lost = "the connection to the tool's server was lost during the call; whether it ran is not known"
                raise SessionLost(lost) from error
            if code == REQUEST_TIMEOUT:
                self._doubted = True
                raise TimeoutError(f"the tool gave no answer within {seconds:g} s") from error
            raise CallRefused(masked(clean(str(leaf_of(error)), _SAID_CHARS))) from error
        finally:
            self._in_flight -= 1
            if self.retired:
                self._retire()

    async def _all_tools(self, client: Client) -> tuple[Tool, ...]:
        """Return the tools that the server lists, page by page. Raises ValueError for an endless list.

        A cursor that leads back to a page ends the list, because the pages so far are what the server has.
        """
        tools: list[Tool] = []
        cursor: str | None = None
        cursors: set[str] = set()
        for _ in range(_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if len(tools) > _TOOLS:
                raise ValueError(f"it lists more than {_TOOLS:,} tools")
            if not cursor:
                return tuple(tools)
            if cursor in cursors:
                _log.warning(
                    "MCP server %r repeats a cursor of its list of tools; the list ends after %d pages",
                    self._name(),
                    len(cursors) + 1,
                )
                return tuple(tools)
            cursors.add(cursor)
        raise ValueError(f"its list of tools does not end within {_PAGES} pages")


class SessionPool:
    """The sessions of one server: one accepts new calls, and older ones finish theirs.

    A server that asks within calls, or that may sample, has further sessions, so that the calls of each belong to one
    run.
    """

    def __init__(
        self, name: str, transport: Stdio | Http, connect_timeout: float, sampling: SamplingRules
    ) -> None:
        self.name = name
        self.sampling = sampling
        self._transport = transport
        self._seconds = connect_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: contextvars.Context | None = None
        self._listed: Listed | None = None
        self._current: McpSession | None = None
        self._asks = sampling.mode != "deny"
        """Whether the server may ask within a call: then runs with calls in flight share no session."""
        self._live: dict[asyncio.Task[None], McpSession] = {}

    async def start(self, listed: Listed) -> McpSession:
        """Open the first session. `listed` receives the later lists of all sessions. Raises Unreachable."""
        if self._loop is not None:
            raise Unreachable(f"MCP server {self.name!r} is in use already; make another one")
        self._loop = asyncio.get_running_loop()
        self._listed = None
        # The context of the first caller, not of a run that happens to need a new session.
        self._context = contextvars.copy_context()
        try:
            session, _ = await self.session()
        except BaseException:
            await self.stop()
            raise
        self._listed = session.listed = listed
        return session

    async def session(self) -> tuple[McpSession, bool]:
        """Return a session for a call, and whether it had to be opened. Raises Unreachable."""
        self._check_loop()
        while (session := self._current) is not None and session.usable and session.ready.done():
            if await session.answers():
                return session, False
        if session is None or not session.usable:
            session = self._current = self._begin()
        return await _opened(session), True

    async def session_of(self, run_id: str) -> tuple[McpSession, bool]:
        """Return a session for a call of a run, and whether it had to be opened. Raises Unreachable.

        A server of an earlier specification that asks within calls gets calls of one run only on each session.
        """
        session, is_new = await self.session()
        if session.is_modern or not self._asks or session.serves(run_id):
            return session, is_new
        for one in tuple(self._live.values()):
            if one.ready.done() and one.serves(run_id) and await one.answers() and one.serves(run_id):
                return one, False
        while True:
            session = await _opened(self._begin())
            if session.serves(run_id):  # else a call of another run has taken it meanwhile
                return session, True

    def _note_request(self) -> None:
        self._asks = True

    async def compare(self) -> None:
        """Compare the tools if the present session announced a change; a lost session is not opened again."""
        session = self._current
        if session is not None and session.usable and session.ready.done():
            await session.answers()

    def _check_loop(self) -> None:
        if self._loop is None:
            raise Unreachable(f"MCP server {self.name!r} is closed")
        if asyncio.get_running_loop() is not self._loop:
            raise Unreachable(
                f"MCP server {self.name!r} was connected in another event loop; connect it in this one"
            )

    def _begin(self) -> McpSession:
        self._check_loop()  # the pool may have been closed during the check of another session
        live = LiveCalls(lambda: self.name, self._note_request, self.sampling)
        session = McpSession(self._transport, self._seconds, self._listed, live)
        task = asyncio.get_running_loop().create_task(
            session.live(lambda: self.name), name=f"mcp {self.name}", context=self._context
        )
        self._live[task] = session
        task.add_done_callback(lambda done: self._live.pop(done, None))
        return session

    async def stop(self) -> None:
        """End all sessions and wait for their end: a cancellation meanwhile is raised when no process is left."""
        self._loop = self._current = None
        cancelled: asyncio.CancelledError | None = None
        for session in self._live.values():
            session.end()
        while self._live:
            try:
                await asyncio.wait(tuple(self._live))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


async def _opened(session: McpSession) -> McpSession:
    """Wait until a session is open. Raises Unreachable."""
    # Shielded: a cancelled caller must not affect others that wait for the same session.
    if (failure := await asyncio.shield(session.ready)) is not None:
        raise Unreachable(str(failure)) from failure
    return session
