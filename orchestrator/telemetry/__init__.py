"""Observers and servers with which an application operates its agents; no lower layer imports them.

    from orchestrator.telemetry import Spans, Watchdog, configure_logging, serve_metrics

Names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.telemetry.exposition import Batch as Batch
    from orchestrator.telemetry.exposition import asgi_app as asgi_app
    from orchestrator.telemetry.exposition import serve_metrics as serve_metrics
    from orchestrator.telemetry.exposition import wsgi_app as wsgi_app
    from orchestrator.telemetry.history import History as History
    from orchestrator.telemetry.log import BoundedWriter as BoundedWriter
    from orchestrator.telemetry.log import TransitionLog as TransitionLog
    from orchestrator.telemetry.log import configure_logging as configure_logging
    from orchestrator.telemetry.metrics import Metrics as Metrics
    from orchestrator.telemetry.notice import ParkNotice as ParkNotice
    from orchestrator.telemetry.otel import Spans as Spans
    from orchestrator.telemetry.scope import config_from_context as config_from_context
    from orchestrator.telemetry.scope import logger_from_context as logger_from_context
    from orchestrator.telemetry.watchdog import Watchdog as Watchdog

_HOME = {
    "Batch": "exposition",
    "BoundedWriter": "log",
    "History": "history",
    "Metrics": "metrics",
    "ParkNotice": "notice",
    "Spans": "otel",
    "TransitionLog": "log",
    "Watchdog": "watchdog",
    "asgi_app": "exposition",
    "config_from_context": "scope",
    "configure_logging": "log",
    "logger_from_context": "scope",
    "serve_metrics": "exposition",
    "wsgi_app": "exposition",
}
"""Public name -> its module."""

__all__ = sorted(_HOME)  # noqa: PLE0605 - derived, so that it cannot disagree with the names


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
