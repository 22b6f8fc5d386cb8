"""Dependencies of the pipeline's hooks: live handles that the runtime builds, never stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from orchestrator.kernel.run import Run
from orchestrator.llm.port import Clock
from orchestrator.machines.pipeline.model import OrchestrationState, PipelineContext
from orchestrator.machines.pipeline.ports import BudgetManager, Port


@dataclass(slots=True, kw_only=True)
class PipelineDeps:
    """Handles of a pipeline, shared by its runs."""

    ports: Mapping[OrchestrationState, Port]
    """Working state -> its port."""
    clock: Clock
    budget: BudgetManager | None = None
    host: Any = None
    """The host's own handles: `StageRequest.deps`."""


PipelineRun: TypeAlias = Run[PipelineContext, PipelineDeps]
