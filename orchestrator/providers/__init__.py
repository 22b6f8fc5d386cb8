"""Models of vendors behind extras, rate limits, prices, and tools of MCP servers.

    from orchestrator.providers import Anthropic, Fallback, McpServer, OpenAI, PydanticAIModel, RateLimit

Names are loaded when first used. The doubles (`ScriptedLLM`, `FunctionLLM`, `ReplayLLM`) are in `orchestrator.testing`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.around import McpServer as McpServer
    from orchestrator.around import PydanticAIModel as PydanticAIModel
    from orchestrator.providers.anthropic import Anthropic as Anthropic
    from orchestrator.providers.fallback import Fallback as Fallback
    from orchestrator.providers.limiter import RateLimit as RateLimit
    from orchestrator.providers.limiter import RateLimitedModel as RateLimitedModel
    from orchestrator.providers.limiter import RateLimiter as RateLimiter
    from orchestrator.providers.openai import OpenAI as OpenAI
    from orchestrator.providers.price import genai_prices as genai_prices
    from orchestrator.providers.price import price_table as price_table

_HOME = {
    "Anthropic": "providers.anthropic",
    "Fallback": "providers.fallback",
    "RateLimitedModel": "providers.limiter",
    "McpServer": "around",
    "OpenAI": "providers.openai",
    "PydanticAIModel": "around",
    "RateLimit": "providers.limiter",
    "RateLimiter": "providers.limiter",
    "genai_prices": "providers.price",
    "price_table": "providers.price",
}
"""Public name -> its module."""

__all__ = sorted(_HOME)  # noqa: PLE0605 - derived, so that it cannot disagree with the names


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"orchestrator.{_HOME[name]}"), name)
    globals()[name] = value
    return value
