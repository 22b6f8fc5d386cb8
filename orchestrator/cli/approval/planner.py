"""The planner of a command: a file, or a model named as for `run`. Its launch data is stored with the project."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orchestrator.cli.launch import Launch, Replacement, limited, model_of, rebuilt
from orchestrator.cli.trust.consent import project_settings
from orchestrator.errors import ConfigError
from orchestrator.machines.approval.limits import PlanCaps
from orchestrator.machines.approval.plan import ApprovalPlanner

Need: TypeAlias = Literal["needed", "wanted", "none"]
"""Purpose of a command's planner: to make a plan; to check that it can be reached; no planner."""

_NONE = "there is no planner: give --plan FILE or --model SPEC, or set ORCHESTRATOR_MODEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerChoice:
    """The planner as the command line names it."""

    plan: Path | None = None
    model: str | None = None
    base_url: str | None = None
    structured: str | None = None
    reasoning_field: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def said(self) -> bool:
        """Whether the command line names a planner."""
        return self.plan is not None or self.model is not None


@dataclass(frozen=True, slots=True)
class PlannerSpec:
    """A planner and its stored launch data, without keys and without passwords of addresses."""

    planner: ApprovalPlanner | None
    launch: Mapping[str, Any]


@asynccontextmanager
async def planner_of(
    named: PlannerChoice, root: Path, kept: Mapping[str, Any], caps: PlanCaps, need: Need
) -> AsyncIterator[PlannerSpec]:
    """Yield the planner: of the command line, else the one the project was started with, else of the settings.

    Commands that need no planner get none: a key is not necessary to show a plan or to cancel it. Raises ConfigError,
    also if a planner is needed and none is named; OSError or ImportError of a model.
    """
    if need == "none":
        yield PlannerSpec(None, kept)
        return
    if named.plan is not None and named.model is not None:
        raise ConfigError("--plan and --model both make the plan: give one of them")
    if named.plan is not None:
        if not named.plan.is_file():
            what = "is no regular file" if named.plan.exists() else "there is no such file"
            raise ConfigError(f"--plan {named.plan}: {what}")
        yield _from_file(named.plan.absolute())
    elif not named.said and kept.get("plan"):
        yield _from_file(Path(kept["plan"]))
    else:
        async with _from_model(named, root, kept, caps, needed=need == "needed") as made:
            yield made


def _from_file(file: Path) -> PlannerSpec:
    from orchestrator.runtime.approval.plan_file import PlanFile

    return PlannerSpec(PlanFile(file), {"plan": str(file)})


@asynccontextmanager
async def _from_model(
    named: PlannerChoice, root: Path, kept: Mapping[str, Any], caps: PlanCaps, *, needed: bool
) -> AsyncIterator[PlannerSpec]:
    settings = project_settings()
    if not named.said and kept.get("model"):
        launch, parts = rebuilt(Launch.of({"launch": kept}), root.name, Replacement(base_url=named.base_url))
        model = parts.model
    elif named.model is None and settings.model is None:
        if needed:
            raise ConfigError(_NONE)
        yield PlannerSpec(None, dict(kept))
        return
    else:
        launch = Launch.here(
            settings,
            model=named.model,
            base_url=named.base_url,
            structured=named.structured,
            reasoning_field=named.reasoning_field,
            params=dict(named.params),
        )
        model = model_of(launch.model, launch.form)
    try:
        from orchestrator.runtime.approval.planner import ModelPlanner

        made = ModelPlanner(limited(model.llm, settings), root, caps=caps, params=launch.params)
        yield PlannerSpec(made, launch.plain())
    finally:
        if (close := getattr(model.llm, "aclose", None)) is not None:
            await close()
