"""What stands around the core, as far as the core names it: each name is loaded when it is first used.

The core is an island: kernel, guards, hooks, models, tools, files, journals in memory and in SQLite, machines, runs,
telemetry and the local engine work in a tree that has nothing else. Where the core offers a part of what stands around
it, it takes the name from here, and nothing else in the core imports that part.

Example:
    from orchestrator import around

    journal = around.PostgresJournal("postgresql:///agents")  # imports the driver now, or raises MissingExtra
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.drawing.element import duration as duration
    from orchestrator.drawing.notebook import bundle as bundle
    from orchestrator.drawing.svg import GraphMarks as GraphMarks
    from orchestrator.engines.dbos import DbosDispatcher as DbosDispatcher
    from orchestrator.engines.procrastinate import ProcrastinateDispatcher as ProcrastinateDispatcher
    from orchestrator.journal.postgres import PostgresJournal as PostgresJournal
    from orchestrator.providers.mcp import McpServer as McpServer
    from orchestrator.providers.named_model import model_of as model_of
    from orchestrator.providers.pydantic_ai import PydanticAIModel as PydanticAIModel
    from orchestrator.providers.replay import ReplayLLM as ReplayLLM
    from orchestrator.providers.replay import ReplayTools as ReplayTools
    from orchestrator.repl import ReplLimits as ReplLimits
    from orchestrator.repl import WorkerRepl as WorkerRepl
    from orchestrator.testing.replay import assert_replays as assert_replays

_HOME = {
    "DbosDispatcher": "engines.dbos",
    "GraphMarks": "drawing.svg",
    "McpServer": "providers.mcp",
    "PostgresJournal": "journal.postgres",
    "ProcrastinateDispatcher": "engines.procrastinate",
    "PydanticAIModel": "providers.pydantic_ai",
    "ReplLimits": "repl",
    "ReplayLLM": "providers.replay",
    "ReplayTools": "providers.replay",
    "WorkerRepl": "repl",
    "assert_replays": "testing.replay",
    "bundle": "drawing.notebook",
    "duration": "drawing.element",
    "model_of": "providers.named_model",
}
"""Name -> the module that has it."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"orchestrator.{_HOME[name]}"), name)
    globals()[name] = value
    return value
