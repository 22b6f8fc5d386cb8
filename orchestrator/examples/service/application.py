"""The application, for any ASGI server.

From the outside in: known host names, people with a token, limits of bodies and event streams, routes. A token is
checked before a body is read.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from orchestrator.errors import ConfigError, RunError
from orchestrator.examples.service.agent import support
from orchestrator.examples.service.routes import refuse, refuse_http, refuse_invalid, router
from orchestrator.examples.service.run_server import PAGES, ActorHook, MakeAgent, RunServer
from orchestrator.web.access import Authentication, HostGuard
from orchestrator.web.limits import RequestLimits

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
        HTTPException: refuse_http,
    }
    app = FastAPI(title="Runs", lifespan=server.lifespan, exception_handlers=handlers)
    app.state.server = server
    app.include_router(router)
    app.add_middleware(RequestLimits)
    app.add_middleware(Authentication, actor=server.actor, public=PUBLIC)
    app.add_middleware(HostGuard, hosts=server.hosts, option=f"--allow-host or {prefix}_HOSTS")
    return app
