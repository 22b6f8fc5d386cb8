"""The application, for any ASGI server: its routes, and its answers to errors (`{"error": "one sentence"}`).

From the outside in: known host names, people with a token, limits of bodies and event streams, routes. A token is
checked before a body is read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Any, TypeAlias

import orjson
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import StringConstraints, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from orchestrator.errors import ConfigError, RunError
from orchestrator.events import RunEvent
from orchestrator.examples.service.agent import support
from orchestrator.examples.service.run_server import PAGES, ActorHook, MakeAgent, RunServer
from orchestrator.examples.service.schema import (
    Accepted,
    ApproveRequest,
    CancelRequest,
    QuestionInfo,
    RejectRequest,
    RespondRequest,
    ResultInfo,
    RunInfo,
    RunListing,
    StartRequest,
)
from orchestrator.web.access import Authentication, HostGuard
from orchestrator.web.limits import RequestLimits
from orchestrator.web.status import status_of

# ---- routes ----

RETRY = 1_000
"""Milliseconds after which a client reconnects to a stream that ended before its run."""
EVENT_ID = r"^\d{1,18}(\.\d{1,18})?$"
TREE_ID = TypeAdapter(dict[str, Annotated[str, StringConstraints(pattern=EVENT_ID)]])
"""Run id -> id of its last event, sent as JSON: the events of several runs have no common number."""


def known_server(request: Request) -> RunServer:
    """Return the server of this process."""
    server: RunServer = request.app.state.server
    return server


def known_user(request: Request) -> str:
    """Return who sends a request: the person of the token, or of the hook `actor` of `create_app`."""
    name: str = request.state.actor
    return name


Server: TypeAlias = Annotated[RunServer, Depends(known_server)]
User: TypeAlias = Annotated[str, Depends(known_user)]

router = APIRouter(dependencies=[Security(HTTPBearer(auto_error=False))])
"""The dependency checks nothing, because the token was checked before: it names the token in /docs."""


@router.post(
    "/runs",
    status_code=201,
    responses={
        409: {"description": "The run exists, and `if_exists` is `raise`; or it is of another agent."}
    },
)
async def start_run(request: StartRequest, server: Server) -> Accepted:
    """Start a run, or continue the one of `run_id`. It is stored when the response arrives."""
    return await server.start(request)


@router.get("/runs")
async def list_runs(
    server: Server,
    *,
    status: str | None = None,
    waiting: bool | None = None,
    tag: Annotated[list[str] | None, Query(description="NAME:VALUE")] = None,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> RunListing:
    """List the runs of the agent, the newest first."""
    tags = {name: value for name, _, value in (one.partition(":") for one in tag or ())}
    page = await server.agent.runs.page(
        agent=server.agent.name, status=status, waiting=waiting, tag=tags, after=after, limit=limit
    )
    return RunListing(runs=[RunInfo.model_validate(head) for head in page.runs], more=page.more)


@router.get("/runs/{run_id}")
async def show_run(run_id: str, server: Server) -> RunInfo:
    """Show where a run is."""
    return RunInfo.model_validate(await server.agent.runs.journal.head(run_id))


async def position(
    run_id: str,
    server: Server,
    last_event_id: Annotated[str | None, Header(pattern=EVENT_ID)] = None,
    after: Annotated[str | None, Query(pattern=EVENT_ID)] = None,
) -> str | None:
    """Return the id of the last event that the client has.

    Raises:
        RunUnknown: There is no such run. After the first event it would be too late for a status.
        HTTPException: 204, if the client has all events of an ended run: an EventSource connects no more.
    """
    head, last = await server.agent.runs.journal.head(run_id), last_event_id or after
    if last is not None and head.status == "ended" and int(last.partition(".")[0]) >= head.seq:
        raise HTTPException(204)
    return last


@router.get("/runs/{run_id}/events", response_class=EventSourceResponse)
async def stream_events(
    run_id: str, server: Server, after: Annotated[str | None, Depends(position)]
) -> AsyncIterator[ServerSentEvent]:
    """Stream the events of a run. One with an id is in the journal; the deltas of a model have none."""
    yield ServerSentEvent(retry=RETRY)
    async with aclosing(server.events(run_id, after)) as events:
        async for event in events:
            yield sent(event, event.id)


async def tree_position(
    run_id: str,
    server: Server,
    last_event_id: Annotated[str | None, Header()] = None,
    after: str | None = None,
) -> dict[str, str]:
    """Return the ids of the last events that the client has.

    Raises:
        RunUnknown: There is no such run.
        HTTPException: 422 for an id that the stream has not sent; 204, if the client has all events of an ended run
            and of its child runs.
    """
    head = await server.agent.runs.head(run_id)
    try:
        last = TREE_ID.validate_json(last_event_id or after or "{}")
    except ValidationError as error:
        raise HTTPException(
            422, "the last event must be the id of an event of this stream, or be left out"
        ) from error
    if last and head.status == "ended":
        async with aclosing(server.agent.runs.tree_events(run_id, after=last)) as rest:
            if await anext(rest, None) is None:
                raise HTTPException(204)
    return last


@router.get("/runs/{run_id}/tree/events", response_class=EventSourceResponse)
async def stream_tree_events(
    run_id: str, server: Server, after: Annotated[dict[str, str], Depends(tree_position)]
) -> AsyncIterator[ServerSentEvent]:
    """Stream the events of a run and of its child runs, at any depth, without the deltas of their models."""
    yield ServerSentEvent(retry=RETRY)
    async with aclosing(server.tree_events(run_id, after)) as events:
        async for event in events:
            after |= {event.run_id: str(event.id)}
            yield sent(event, orjson.dumps(after).decode())


def sent(event: RunEvent, event_id: str | None) -> ServerSentEvent:
    """Return an event as it is sent."""
    data = {name: value for name, value in asdict(event).items() if name not in {"seq", "part"}}
    return ServerSentEvent(event=type(event).__name__, id=event_id, data=data)


@router.get("/runs/{run_id}/questions")
async def list_questions(run_id: str, server: Server) -> list[QuestionInfo]:
    """List the questions that wait for a person."""
    return [QuestionInfo.model_validate(one) for one in await server.agent.runs.pending(run_id)]


@router.post("/runs/{run_id}/approve")
async def approve_call(run_id: str, answer: ApproveRequest, server: Server, user: User) -> Accepted:
    """Approve a tool call."""
    posted = await server.agent.runs.approve(run_id, **answer.model_dump(), by=user)
    return Accepted(run_id=run_id, repeated=posted.repeated)


@router.post("/runs/{run_id}/reject")
async def reject_call(run_id: str, answer: RejectRequest, server: Server, user: User) -> Accepted:
    """Reject a tool call: the model reads why, or the run ends."""
    posted = await server.agent.runs.reject(run_id, **answer.model_dump(), by=user)
    return Accepted(run_id=run_id, repeated=posted.repeated)


@router.post("/runs/{run_id}/respond")
async def respond_to_call(run_id: str, answer: RespondRequest, server: Server, user: User) -> Accepted:
    """Answer a tool call in place of its tool."""
    posted = await server.agent.runs.respond(run_id, **answer.model_dump(), by=user)
    return Accepted(run_id=run_id, repeated=posted.repeated)


@router.post("/runs/{run_id}/cancel", status_code=202)
async def cancel_run(run_id: str, request: CancelRequest, server: Server, user: User) -> Accepted:
    """Request that a run stops. Its events and its result show when it has."""
    (sent,) = await server.agent.runs.cancel(run_id, by=user, why=request.why)
    return Accepted(run_id=run_id, repeated=sent.repeated)


@router.get("/runs/{run_id}/result")
async def read_result(run_id: str, server: Server) -> ResultInfo:
    """Return the result of an ended run."""
    result = await server.agent.runs.result(run_id)
    tokens = result.usage.input_tokens + result.usage.output_tokens
    return ResultInfo(
        run_id=run_id,
        outcome=result.outcome,
        reason=result.reason,
        output=result.output,
        tokens=tokens,
        error=None if result.error is None else str(result.error),
    )


async def refuse(_: Request, error: Exception) -> JSONResponse:
    """Return an error as one sentence."""
    status = status_of(error)
    return JSONResponse({"error": str(error)}, status, {"Retry-After": "1"} if status == 503 else None)  # noqa: PLR2004


async def refuse_invalid(_: Request, error: Exception) -> JSONResponse:
    """Return the first fault of an invalid request as one sentence."""
    fault: Mapping[str, Any] = {"loc": (), "msg": str(error)}
    if isinstance(error, RequestValidationError):
        fault = error.errors()[0]
    place, cause = ".".join(map(str, fault["loc"])), str(fault.get("ctx", {}).get("error", ""))
    return JSONResponse({"error": f"{place}: {fault['msg']}" + (cause and f" ({cause})")}, 422)


async def refuse_http(request: Request, error: Exception) -> Response:
    """Return an error of the framework, such as an unknown path, in the same form."""
    if not isinstance(error, StarletteHTTPException) or error.status_code == 204:  # noqa: PLR2004
        return Response(status_code=204)
    text = f"{request.method} {request.url.path}: {error.detail}; /docs lists the routes"
    return JSONResponse({"error": text}, error.status_code, error.headers)


# ---- the application ----

PREFIX = "SERVICE"
PUBLIC = (*PAGES, "/docs", "/openapi.json")
"""Paths without a token: they have no contents of runs."""


def create_app(
    make_agent: MakeAgent = support,
    *,
    actor: ActorHook | None = None,
    prefix: str = PREFIX,
    **options: Any,
) -> FastAPI:
    """Return the application.

    Args:
        make_agent: Makes the agent of a worker process for its journal and its observers.
        actor: Your authentication in place of tokens: takes the request and returns the name of the person, which
            the journal has beside each answer; None refuses the request.
        prefix: Of the environment variables. `SERVICE_TOKEN` is a token of at least 16 characters, or those of several
            people as `NAME:TOKEN,NAME:TOKEN`; `SERVICE_HOSTS` has further host names, separated by commas.
        options: Options of LocalEngine, such as `slots` and `grace`.
    """
    server = RunServer(make_agent, options, actor, prefix)
    handlers: dict[Any, Any] = {
        RunError: refuse,
        ConfigError: refuse,
        RequestValidationError: refuse_invalid,
        StarletteHTTPException: refuse_http,
    }
    app = FastAPI(title="Runs", lifespan=server.lifespan, exception_handlers=handlers)
    app.state.server = server
    app.include_router(router)
    app.add_middleware(RequestLimits)
    app.add_middleware(Authentication, actor=server.actor, public=PUBLIC)
    app.add_middleware(HostGuard, hosts=server.hosts, option=f"--allow-host or {prefix}_HOSTS")
    return app
