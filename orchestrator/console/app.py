"""The console as an ASGI application.

A browser that another site redirects to this address by DNS still sends that site's name as Host, so only known names
are answered. The policy allows no inline script or style, so text that a model or a tool wrote stays text even where an
escape were missing.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, request_response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.console import (
    agents_page,
    backtest_page,
    health_page,
    inbox_page,
    machines_page,
    run_page,
    runs_page,
    start_page,
)
from orchestrator.console.access import (
    Access,
    Actor,
    Hook,
    SignInCode,
    SignInRefused,
    session_of,
    with_session,
)
from orchestrator.console.feed import Feed
from orchestrator.console.pages import FAULTS, PAGES, Console, ContentRule, PageFault
from orchestrator.drawing.stylesheet import status_stylesheet, stylesheet
from orchestrator.errors import ConfigError
from orchestrator.kernel.graph import Graph
from orchestrator.runtime.runs.runs import Runs
from orchestrator.runtime.service.answer import default_actor
from orchestrator.web.access import LOOPBACK, checked_token, is_known_host
from orchestrator.web.limits import RequestLimits, send_sentence
from orchestrator.web.status import status_of

if TYPE_CHECKING:
    from orchestrator.engines.local_engine import LocalEngine

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with `no-referrer` a browser sends `Origin: null` with our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Shield:
    """ASGI middleware around the console.

    Args:
        app: The application.
        hosts: Names of this host that a request may use, without a port; `*` allows every name.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower().strip("[]") for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sending = _with_headers(send, is_static="/static/" in scope["path"])
        fault = self._fault(scope["method"], Headers(scope=scope))
        if fault is not None:
            await send_sentence(sending, *fault)
            return
        await self._app(scope, receive, sending)

    def _fault(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if "*" not in self._hosts and not is_known_host(host, self._hosts):
            return 400, "this console does not answer to this host name; name it with --allow-host"
        if method in {"GET", "HEAD"}:
            return None
        if method != "POST":
            return 405, "only GET, HEAD and POST are answered"
        # Whether a browser says that a page of ours sent the request; other clients send neither header.
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            same_site = False
        else:
            same_site = headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}
        if not same_site:
            return 403, "the request comes from another site"
        return None


def _with_headers(send: Send, *, is_static: bool) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            # Names of assets carry the version of the package.
            headers.setdefault("cache-control", "public, max-age=86400" if is_static else "no-store")
        await send(message)

    return sending


Handler = Callable[[Console, Request, Actor], Awaitable[Response]]
Poster = Callable[[Console, Request, Actor, Mapping[str, list[str]]], Awaitable[Response]]
CONTENT: Final = ("never", "ask", "always")
_LOG: Final = logging.getLogger("orchestrator.console")
_STATIC: Final = Path(__file__).parent / "static"
_FIELDS: Final = 5_000
"""Most fields of a form: more than the runs that are selected at once."""
_SIGN_IN_BYTES: Final = 10_000
"""Bytes of a sign-in, which needs no session."""


def console_app(
    runs: Runs,
    *,
    actor: Hook | None = None,
    token: str | None = None,
    code: SignInCode | None = None,
    operate: bool = False,
    content: ContentRule = "ask",
    graphs: Mapping[str, Graph] | None = None,
    engine: LocalEngine[Any] | None = None,
    hosts: Sequence[str] = LOOPBACK,
    title: str = "",
) -> ASGIApp:
    """Return the console of a journal as an ASGI application. It needs `actor`, `token` or `code`.

    Bodies, their time and open event streams are limited here, so that any server may run it.

    Args:
        runs: The runs of the journal: `Runs(journal)`, or `agent.runs`.
        actor: Hook of the application that mounts the console: takes the request and returns the authenticated `Actor`
            with its rights; None refuses the request. `token`, `code` and `operate` are ignored then.
        token: Token of at least 16 characters that signs in any number of people.
        code: Signs in one browser, once, within 5 minutes.
        operate: Whether who signed in may answer questions, start runs, and cancel, pause and resume them.
        content: Whether messages, arguments and results are shown: `never`, `ask` (on request) or `always`. The
            arguments of an open question are always shown to those who may answer it.
        graphs: Further graphs by name: machines of the application. The drawing of an unknown one has the edges that
            its run took.
        engine: An engine of this process on the same journal, which starts runs directly. Live engines of other
            processes are asked through the journal; a journal in memory has none.
        hosts: Host names under which the console is reached, without ports; `*` for any. The default is this machine.
        title: Name of the journal in the header.

    Raises:
        ConfigError: `content` is unknown, or the token is too short, or `actor`, `token` and `code` are missing.

    Example:
        app = Starlette(routes=[Mount("/console", console_app(Runs(journal), actor=actor_of, hosts=["*"]))])
    """
    if content not in CONTENT:
        raise ConfigError(f"content is {content!r}; it must be one of {', '.join(CONTENT)}")
    if token is not None:
        checked_token(token)
    if actor is None and token is None and code is None:
        raise ConfigError(
            "nobody could read this console: give actor=, the hook of your application, or token= of at least 16 "
            "characters"
        )
    local = Actor(default_actor(), may_operate=operate)
    console = Console(
        runs=runs,
        access=Access(local, actor, token, code),
        graphs=dict(graphs or {}),
        content=content,
        title=title,
        feed=Feed(runs),
        engine=engine,
    )
    app = Starlette(routes=_routes(console))
    return Shield(RequestLimits(app), hosts)


def _routes(console: Console) -> list[Route | Mount]:
    async def drawing(_: Request) -> Response:
        return PlainTextResponse(status_stylesheet() + stylesheet(), media_type="text/css")

    def get(path: str, handler: Handler) -> Route:
        async def read(request: Request) -> Response:
            # Give the browser a session if it has none.
            if not session_of(request):
                request.state.session = secrets.token_urlsafe(32)
            actor = console.access.actor(request)
            if actor is None:
                return _refused(console, request)
            try:
                response = await handler(console, request, actor)
            except FAULTS as error:
                response = _fault(console, request, actor, error)
            return with_session(request, response, session_of(request))

        return Route(path, read, methods=["GET"])

    def post(path: str, handler: Poster) -> Route:
        async def write(request: Request) -> Response:
            actor = console.access.actor(request)
            if actor is None:
                return _refused(console, request)
            try:
                form = await form_of(request)
                if not console.access.is_form_of(request, actor, _one(form, "form_token")):
                    raise PageFault(
                        403, "This form is too old, or another page sent it. Reload the page and try again."
                    )
                if not actor.may_operate:
                    raise PageFault(403, "This console is read-only for you: start it with --operate.")
                return await handler(console, request, actor, form)
            except FAULTS as error:
                return _fault(console, request, actor, error)

        return Route(path, write, methods=["POST"])

    return [
        Route("/static/drawing.css", drawing),
        Mount("/static", StaticFiles(directory=_STATIC)),
        Route("/sign-in", RequestLimits(request_response(_signing_in(console)), max_body=_SIGN_IN_BYTES)),
        Route("/sign-out", _signing_out(console), methods=["POST"]),
        get("/", runs_page.runs),
        get("/rows", runs_page.rows),
        get("/events", _events),
        get("/several", runs_page.preview),
        post("/several", runs_page.post),
        get("/runs/{run_id:path}", run_page.run),
        get("/records/{run_id:path}", run_page.records),
        get("/cases/{run_id:path}", run_page.case),
        get("/start", start_page.form),
        post("/start", start_page.post),
        get("/inbox", inbox_page.inbox),
        post("/answer/{run_id:path}", inbox_page.answer),
        get("/answers", inbox_page.preview),
        post("/answers", inbox_page.post),
        get("/machines", machines_page.machines),
        get("/agents", agents_page.agents),
        get("/agents/{agent:path}", agents_page.agent),
        get("/health", health_page.health),
        get("/compare", runs_page.compare),
        get("/backtest", backtest_page.backtest),
        get("/{path:path}", _no_page),
    ]


async def _no_page(_: Console, request: Request, __: Actor) -> Response:
    raise PageFault(404, f"The console has no page {request.path_params['path']!r}. Choose one above.")


# ---- around each page ----


def _refused(console: Console, request: Request) -> Response:
    response: Response
    if console.access.hook is not None:
        response = PlainTextResponse("The application that serves this console refuses you.\n", 403)
    else:
        response = RedirectResponse(f"{request.scope.get('root_path', '')}/sign-in", 303)
    if request.method == "POST":
        response.headers["connection"] = "close"  # the form is not read
    return response


def _fault(console: Console, request: Request, actor: Actor, error: Exception) -> Response:
    """Return an error as a page of one sentence, which never has content of a run."""
    status = error.status if isinstance(error, PageFault) else status_of(error)
    text = str(error)
    values: dict[str, Any] = {"pages": PAGES, "page": "", "entry": "", "waiting": 0, "version": ""}
    values["text"] = text[:1].upper() + text[1:]
    return console.rendered(request, actor, "fault.html", status, **values)


async def form_of(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form. Raises PageFault."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise PageFault(415, "A form is sent as application/x-www-form-urlencoded.")
    found: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError as error:
        raise PageFault(400, f"The form cannot be read, or has more than {_FIELDS:,} fields.") from error
    for name, value in pairs:
        found.setdefault(name, []).append(value.replace("\r\n", "\n"))
    return found


def _one(form: Mapping[str, list[str]], name: str) -> str:
    return (form.get(name) or [""])[0]


# ---- sign-in ----


def _signing_in(console: Console) -> Callable[[Request], Awaitable[Response]]:
    async def sign_in(request: Request) -> Response:
        access = console.access
        if access.hook is not None:
            return RedirectResponse(f"{request.scope.get('root_path', '')}/", 303)
        if request.method != "POST":
            return _sign_in_page(console, request)
        address = request.client.host if request.client else ""
        try:
            session = access.sign_in(_one(await form_of(request), "token"), address)
        except PageFault as fault:
            return _sign_in_page(console, request, fault.text, fault.status)
        except SignInRefused as refused:
            if not refused.wait:
                _LOG.warning(
                    "console: a token was refused, address %s, %d in all", address, access.limiter.wrong
                )
                return _sign_in_page(console, request, str(refused), refused.status)
            response = _sign_in_page(console, request, str(refused), refused.status)
            response.headers.update({"retry-after": f"{refused.wait:.0f}", "connection": "close"})
            return response
        return with_session(request, RedirectResponse(f"{request.scope.get('root_path', '')}/", 303), session)

    return sign_in


def _sign_in_page(console: Console, request: Request, fault: str = "", status: int = 200) -> Response:
    once = console.access.token is None
    return console.rendered(request, None, "sign_in.html", status, fault=fault, once=once)


def _signing_out(console: Console) -> Callable[[Request], Awaitable[Response]]:
    async def sign_out(request: Request) -> Response:
        actor = console.access.actor(request)
        if actor is not None:
            try:
                form = await form_of(request)
            except PageFault as fault:
                return _fault(console, request, actor, fault)
            if console.access.is_form_of(request, actor, _one(form, "form_token")):
                console.access.sign_out(session_of(request))
        return RedirectResponse(f"{request.scope.get('root_path', '')}/sign-in", 303)

    return sign_out


async def _events(console: Console, request: Request, actor: Actor) -> Response:
    del actor
    since = request.query_params.get("since", "")
    return StreamingResponse(console.feed.events(since), media_type="text/event-stream")
