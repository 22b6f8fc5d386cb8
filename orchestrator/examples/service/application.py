"""The application, for any ASGI server."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from orchestrator.errors import ConfigError, RunError
from orchestrator.examples.service.agent import support
from orchestrator.examples.service.routes import refuse, refuse_http, refuse_invalid, router
from orchestrator.examples.service.run_server import MakeAgent, RunServer

MAX_BODY = 1_000_000
"""Bytes of a request."""


def create_app(make_agent: MakeAgent = support, **options: Any) -> FastAPI:
    """Return the application.

    Args:
        make_agent: Makes the agent of a worker process for its journal and its observers.
        options: Options of LocalEngine, such as `slots` and `grace`.
    """
    server = RunServer(make_agent, options)
    handlers: dict[Any, Any] = {
        RunError: refuse,
        ConfigError: refuse,
        RequestValidationError: refuse_invalid,
        HTTPException: refuse_http,
    }
    app = FastAPI(title="Runs", lifespan=server.lifespan, exception_handlers=handlers, max_body_size=MAX_BODY)
    app.state.server = server
    app.include_router(router)
    return app
