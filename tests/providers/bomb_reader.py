"""A process that asks a model, or an MCP server, and prints what it came to and how much memory that took, as JSON.

bomb_reader.py openai|responses|anthropic|mcp whole|streamed URL
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path

from orchestrator.errors import ConfigError, LLMError
from orchestrator.llm.message import Message, Request
from orchestrator.llm.retry import classify
from orchestrator.providers.anthropic import Anthropic
from orchestrator.providers.mcp import McpServer
from orchestrator.providers.openai import OpenAI
from orchestrator.providers.vendor_model import SdkModel

_STATUS = Path("/proc/self/status")


def peak() -> int:
    """Return the most memory that this process has had, in bytes; elsewhere than on Linux its parent's may count."""
    if not _STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def model(kind: str, url: str) -> SdkModel:
    if kind == "anthropic":
        return Anthropic("m", base_url=url, api_key="k")
    return OpenAI("m", base_url=url, api_key="k", api="responses" if kind == "responses" else "chat")


async def asked(kind: str, way: str, url: str) -> str:
    """Return what came of the request, as a sentence."""
    if kind == "mcp":
        try:
            async with McpServer.http(url, connect_timeout=60):
                return "connected"
        except ConfigError as error:
            return str(error)
    async with model(kind, url) as llm:
        listener = (lambda _: None) if way == "streamed" else None
        try:
            await llm.complete(Request((Message("user", "hi"),), on_delta=listener))
        except LLMError as error:
            return f"{error.kind} {error.status} {classify(error).retryable}: {error}"
        return "answered"


def main() -> None:
    kind, way, url = sys.argv[1:]
    asyncio.run(asked(kind, way, "http://127.0.0.1:9"))  # loads what the real request needs
    before = peak()
    came_to = asyncio.run(asked(kind, way, url))
    sys.stdout.write(json.dumps({"came_to": came_to, "bytes": peak() - before}))


main()
