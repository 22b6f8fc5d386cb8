"""The testing kit for users: doubles, coverage of a graph, paths through it, checks of guards.

Names are loaded when first used. pytest loads the plugin `orchestrator.testing.plugin` automatically.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.around import ReplayLLM as ReplayLLM
    from orchestrator.around import ReplayTools as ReplayTools
    from orchestrator.around import assert_replays as assert_replays
    from orchestrator.journal.crashing import CrashingJournal as CrashingJournal
    from orchestrator.journal.memory import MemoryJournal as MemoryJournal
    from orchestrator.providers.model_guard import refuse_real_models as refuse_real_models
    from orchestrator.providers.schema_model import SchemaLLM as SchemaLLM
    from orchestrator.providers.scripted import FunctionLLM as FunctionLLM
    from orchestrator.providers.scripted import ScriptedLLM as ScriptedLLM
    from orchestrator.providers.scripted import call as call
    from orchestrator.testing.clock import FakeClock as FakeClock
    from orchestrator.testing.coverage import GraphCoverage as GraphCoverage
    from orchestrator.testing.paths import edge_paths as edge_paths
    from orchestrator.testing.paths import parametrize_paths as parametrize_paths
    from orchestrator.testing.paths import path_id as path_id
    from orchestrator.testing.paths import shortest_paths as shortest_paths
    from orchestrator.testing.paths import simple_paths as simple_paths
    from orchestrator.testing.paths import walk as walk
    from orchestrator.testing.purity import GuardImpure as GuardImpure
    from orchestrator.testing.purity import check_guard as check_guard
    from orchestrator.testing.purity import pure as pure
    from orchestrator.testing.purity import strict_guards as strict_guards

_HOME = {
    "CrashingJournal": "journal.crashing",
    "FakeClock": "testing.clock",
    "FunctionLLM": "providers.scripted",
    "GraphCoverage": "testing.coverage",
    "GuardImpure": "testing.purity",
    "MemoryJournal": "journal.memory",
    "ReplayLLM": "around",
    "ReplayTools": "around",
    "SchemaLLM": "providers.schema_model",
    "ScriptedLLM": "providers.scripted",
    "assert_replays": "around",
    "call": "providers.scripted",
    "check_guard": "testing.purity",
    "edge_paths": "testing.paths",
    "parametrize_paths": "testing.paths",
    "path_id": "testing.paths",
    "pure": "testing.purity",
    "refuse_real_models": "providers.model_guard",
    "shortest_paths": "testing.paths",
    "simple_paths": "testing.paths",
    "strict_guards": "testing.purity",
    "walk": "testing.paths",
}

__all__ = sorted(_HOME)  # noqa: PLE0605 - derived, so that it cannot disagree with the names


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"orchestrator.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
