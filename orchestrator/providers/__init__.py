"""Models of vendors behind extras, rate limits, prices, and tools of MCP servers.

    from orchestrator.providers import Anthropic, Fallback, McpServer, OpenAI, PydanticAIModel, RateLimit

Names are loaded when first used. The doubles (`ScriptedLLM`, `FunctionLLM`, `ReplayLLM`) are in `orchestrator.testing`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.providers.anthropic import Anthropic as Anthropic
    from orchestrator.providers.fallback import Fallback as Fallback
    from orchestrator.providers.limiter import RateLimit as RateLimit
    from orchestrator.providers.limiter import RateLimitedModel as RateLimitedModel
    from orchestrator.providers.limiter import RateLimiter as RateLimiter
    from orchestrator.providers.mcp import McpServer as McpServer
    from orchestrator.providers.openai import OpenAI as OpenAI
    from orchestrator.providers.price import genai_prices as genai_prices
    from orchestrator.providers.price import price_table as price_table
    from orchestrator.providers.pydantic_ai import PydanticAIModel as PydanticAIModel

_HOME = {
    "Anthropic": "anthropic",
    "Fallback": "fallback",
    "RateLimitedModel": "limiter",
    "McpServer": "mcp",
    "OpenAI": "openai",
    "PydanticAIModel": "pydantic_ai",
    "RateLimit": "limiter",
    "RateLimiter": "limiter",
    "genai_prices": "price",
    "price_table": "price",
}
"""Public name -> its module."""

__all__ = sorted(_HOME)  # noqa: PLE0605 - derived, so that it cannot disagree with the names


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
