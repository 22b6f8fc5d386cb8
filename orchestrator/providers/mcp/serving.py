"""Offer agents as tools of an MCP server, for clients of the specification of 2026-07-28 and of the earlier ones.

A call starts a run, or continues the run that `request_state` or the argument `run_id` names. The run is durable: a
client that repeats a call with the same state gets the same run, also after a crash of this process, so the state is
the id of the run and nothing of it is kept in memory. An id has 122 random bits, so a client cannot guess the runs
of another one.

A question of the run is an elicitation. A client of 2026-07-28 gets `input_required`, an older one with elicitation is
asked within the call, and one without elicitation reads how a person can answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.errors import OrchestratorError
from orchestrator.providers.mcp.offer import clean
from orchestrator.web.access import Authentication, Bearers
from orchestrator.web.limits import App, RequestLimits

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp_types import (
        CallToolRequestParams,
        CallToolResult,
        ElicitationCapability,
        InputRequiredResult,
        ListToolsResult,
        PaginatedRequestParams,
    )

_MODERN = "2026-07-28"
_QUESTION_CHARS = 2_000
_DECISION = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "enum": ["approve", "reject"], "title": "Decision"},
        "reason": {"type": "string", "title": "Reason"},
    },
    "required": ["decision"],
}
_ARGUMENTS = {
    "type": "object",
    "properties": {
        "prompt": {
            "type": "string",
            "description": "What to do, with everything that has to be known for it.",
        },
        "run_id": {"type": "string", "description": "Continue this run instead, to get its result."},
    },
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class RunQuestion:
    """A question of a run: its key, and a text for a person."""

    key: str
    text: str
    schema: Mapping[str, Any] | None = None
    """Form of the input that a tool of the run asks for; None asks for a decision."""
    url: str = ""
    """Address that a tool of the run asks a person to open."""


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """The end of a run."""

    text: str
    is_error: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)


class ServedAgent(Protocol):
    """An agent behind a tool of the server."""

    @property
    def name(self) -> str:
        """Name of the tool."""
        ...

    @property
    def description(self) -> str:
        """Description of the tool."""
        ...

    async def start(self, prompt: str) -> str:
        """Start a run; return its id."""
        ...

    async def wait(
        self, run_id: str, progress: Callable[[str], Awaitable[None]]
    ) -> RunAnswer | list[RunQuestion]:
        """Return the end of a run, or its questions. A run that no process drives is resumed. Raises RunUnknown."""
        ...

    async def answer(self, run_id: str, key: str, *, accept: bool, content: Mapping[str, Any]) -> bool:
        """Answer a question with the content of its form; return whether it is an answer.

        An answer that counts already changes nothing.
        """
        ...


def mcp_server(agents: Sequence[ServedAgent], version: str) -> Server[Any]:
    """Return the server whose tools are the agents."""
    from mcp.server.lowlevel import Server
    from mcp_types import ListToolsResult, Tool, ToolAnnotations

    known = {agent.name: agent for agent in agents}
    hints = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False)

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Tool(name=one.name, description=one.description, input_schema=_ARGUMENTS, annotations=hints)
                for one in agents
            ]
        )

    async def call_tool(
        context: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        return await _call(known, context, params)

    return Server("orchestrator", version=version, on_list_tools=list_tools, on_call_tool=call_tool)


async def _call(
    known: Mapping[str, ServedAgent], context: ServerRequestContext[Any], params: CallToolRequestParams
) -> CallToolResult | InputRequiredResult:
    from mcp import MCPError
    from mcp_types import INVALID_PARAMS

    agent = known.get(params.name)
    if agent is None:
        raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r}; the tools are: {', '.join(known)}")
    try:
        # The run of a call: the one that it names, or a new one.
        given = params.arguments or {}
        run_id, prompt = params.request_state or given.get("run_id"), given.get("prompt")
        if not isinstance(run_id, str) or not run_id:
            if not isinstance(prompt, str) or not prompt.strip():
                raise MCPError(INVALID_PARAMS, "the argument `prompt` must be text that is not blank")
            run_id = await agent.start(prompt)
        for key, response in (params.input_responses or {}).items():
            if not await _take(agent, run_id, key, response):
                return _waits(run_id)
        return await _result_or_questions(agent, context, run_id)
    except OrchestratorError as error:
        return _result(RunAnswer(str(error), is_error=True))


async def _result_or_questions(
    agent: ServedAgent, context: ServerRequestContext[Any], run_id: str
) -> CallToolResult | InputRequiredResult:
    """Return the result of a run, or its questions in the form that the client understands."""
    from mcp_types import ElicitRequest, InputRequiredResult

    steps = 0

    async def progress(text: str) -> None:
        nonlocal steps
        steps += 1
        await context.session.report_progress(steps, None, text)

    capabilities = context.session.client_capabilities
    while isinstance(found := await agent.wait(run_id, progress), list):
        if capabilities is None or capabilities.elicitation is None:
            return _waits(run_id)
        forms = {one.key: _form(one, capabilities.elicitation) for one in found}
        if context.protocol_version >= _MODERN:
            requests: Any = {key: ElicitRequest(params=form) for key, form in forms.items()}
            return InputRequiredResult(input_requests=requests, request_state=run_id)
        for key, form in forms.items():
            if form.mode == "url":
                session = context.session
                said = await session.elicit_url(
                    form.message, form.url, form.elicitation_id, context.request_id
                )
            else:
                said = await context.session.elicit_form(
                    form.message, form.requested_schema, context.request_id
                )
            if not await _take(agent, run_id, key, said):
                return _waits(run_id)
    return _result(found)


def _form(question: RunQuestion, elicitation: ElicitationCapability) -> Any:
    """Return a question as an elicitation: its form, its address if the client shows addresses, or a decision."""
    from mcp_types import ElicitRequestFormParams, ElicitRequestURLParams

    text = clean(question.text, _QUESTION_CHARS)
    if question.url and elicitation.url is not None:
        return ElicitRequestURLParams(message=text, url=question.url, elicitation_id=question.key)
    schema = _DECISION if question.schema is None else dict(question.schema)
    return ElicitRequestFormParams(message=text, requested_schema=schema)


async def _take(agent: ServedAgent, run_id: str, key: str, response: object) -> bool:
    """Pass on the answer of a person; return whether it is one. A form that was closed answers nothing."""
    action, content = getattr(response, "action", "cancel"), getattr(response, "content", None) or {}
    if action == "cancel":
        return False
    return await agent.answer(run_id, key, accept=action == "accept", content=content)


def _waits(run_id: str) -> CallToolResult:
    """Return how a person answers a question of a run that the client has not answered."""
    return _result(
        RunAnswer(
            f"The run {run_id} waits for a person, who answers with `orchestrator runs respond {run_id}`. Call this "
            f"tool again with run_id={run_id!r} for the result.",
            data={"run_id": run_id, "outcome": "parked"},
        )
    )


def _result(answer: RunAnswer) -> CallToolResult:
    from mcp_types import CallToolResult, TextContent

    return CallToolResult(
        content=[TextContent(type="text", text=answer.text)],
        structured_content=dict(answer.data) or None,
        is_error=answer.is_error,
    )


# ---- transports ----


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client over standard input and output, until it closes them."""
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_http(
    server: Server[Any],
    host: str,
    port: int,
    token: str | None,
    ready: Callable[[str], None],
    *,
    proxies: Sequence[str] = (),
) -> None:
    """Serve clients over streamable HTTP, until the task is cancelled. `ready` is called with the address.

    With a token each request must have it, as `Authorization: Bearer TOKEN`. `proxies` are trusted proxies in front.
    """
    from orchestrator.web.server import serve

    app: App = RequestLimits(server.streamable_http_app(host=host), reads_first=True)
    if token is not None:
        app = Authentication(app, Bearers({"client": token}).actor)
    never = asyncio.Event()
    await serve(app, host, port, never, lambda url: ready(f"{url}mcp"), lifespan=True, proxies=proxies)
