"""A pipeline in a TOML file: requirements, the agents of the four stages, limits and rubric.

    requirements = "requirements.toml"      # a file, from the folder of this one; or inline: spec = "…" or [spec]

    [limits]                                # members of PipelineLimits
    [rubric]                                # members of Rubric

    [stages.planner]                        # planner, validator, implementer, judge: each is one of
    python = "module:function"              #   a callable that takes the request
    command = ["{python}", "{folder}/x.py"] #   a program, started without a shell (see `command`)
    env = ["GITHUB_TOKEN"]                  #       further environment variables, or patterns; ["*"] is all of them
    prompt = "Plan it."                     #   a request to a model
    model = "openai:NAME"                   #       default: ORCHESTRATOR_MODEL

Modules are found in the working directory or among the installed packages, programs start in the working directory, as
with `orchestrator run`; only files that the spec names are found in its own folder. The content of the file is
stored with the run, so that `resume` needs neither the file nor its requirements.
"""

from __future__ import annotations

import functools
import json
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.cli.launch import ModelForm, model_of
from orchestrator.cli.load import imported, schema_from
from orchestrator.cli.pipeline.command import CommandStage
from orchestrator.cli.redaction import bare
from orchestrator.cli.trust.consent import configuration, project_settings
from orchestrator.errors import ConfigError
from orchestrator.files.bounded import read_file
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.pipeline.limits import PipelineLimits
from orchestrator.machines.pipeline.model import OrchestrationState
from orchestrator.machines.pipeline.ports import EFFECTS
from orchestrator.machines.pipeline.rubric import Rubric
from orchestrator.settings import build

STAGES: Mapping[str, OrchestrationState] = {
    "planner": OrchestrationState.PLANNING,
    "validator": OrchestrationState.VALIDATING,
    "implementer": OrchestrationState.IMPLEMENTING,
    "judge": OrchestrationState.JUDGING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """The agent of a stage: exactly one of python, command and prompt."""

    python: str | None = None
    command: tuple[str, ...] = ()
    prompt: str | None = None
    effect: str | None = None
    """Whether a callable or a program may be run again after a crash: pure, idempotent (default), irreversible."""
    timeout: float = 0.0
    """Maximum seconds of a command; 0 means no limit."""
    env: tuple[str, ...] = ()
    """Names or patterns of environment variables that a command gets in addition to the usual ones."""
    model: str | None = None
    base_url: str | None = None
    instructions: str | None = None
    output_schema: str | None = None
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """The content of a spec file. Its objects are not imported and its programs not started yet."""

    stages: Mapping[str, StageSpec]
    spec: Any = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    rubric: Mapping[str, Any] = field(default_factory=dict)
    budget: str | None = None
    """`module:attribute` of an object with `is_exhausted()`."""
    folder: str = ""
    """Absolute path of the spec file."""

    @classmethod
    def read(cls, file: Path, requirements: Path | None = None) -> PipelineSpec:
        """Read a spec that the user trusts; `requirements` is a file that replaces those of the spec.

        Raises ConfigError or OSError.
        """
        members = dict(configuration(file))
        folder = file.absolute().parent
        named = members.pop("requirements", None)
        if named is not None and "spec" in members:
            raise ConfigError(f"{file}: `requirements` and `spec` say the same; give one of them")
        if requirements is not None:
            members["spec"] = _data(requirements)
        elif named is not None:
            members["spec"] = _data(folder / str(named))
        elif "spec" not in members:
            raise ConfigError(f'{file} does not say what is wanted: `requirements = "FILE"`, or `spec`')
        return cls.of({**members, "folder": str(folder)}, str(file))

    @classmethod
    def of(cls, members: Mapping[str, Any], where: str) -> PipelineSpec:
        """Create a spec from plain data. Raises ConfigError."""
        found: PipelineSpec = build(cls, _checked(members, where), where)
        _plain(found.spec, where)
        if missing := [name for name in STAGES if name not in found.stages]:
            raise ConfigError(f"{where} has no [stages.{missing[0]}]")
        if strange := [name for name in found.stages if name not in STAGES]:
            raise ConfigError(f"{where}: unknown stage {strange[0]!r}; known: {', '.join(STAGES)}")
        for name, stage in found.stages.items():
            said = [way for way in ("python", "command", "prompt") if getattr(stage, way)]
            if stage.effect not in (None, *EFFECTS):
                raise ConfigError(
                    f"{where}: the effect of stages.{name} is {stage.effect!r}; known: {', '.join(EFFECTS)}"
                )
            if stage.base_url is not None and bare(stage.base_url) != stage.base_url:
                raise ConfigError(
                    f"{where}: base_url of stages.{name} has a user, a password or a query, which would be stored with "
                    "the run"
                )
            if len(said) != 1:
                raise ConfigError(
                    f"{where}: stages.{name} takes one of python, command and prompt, not {len(said)}"
                )
        found.pipeline_limits()
        found.pipeline_rubric()
        return found

    def pipeline_limits(self, changes: Mapping[str, Any] | None = None) -> PipelineLimits:
        """Return the limits with others put over them. Raises ConfigError."""
        return build(PipelineLimits, {**self.limits, **(changes or {})}, "limits")

    def pipeline_rubric(self) -> Rubric:
        """Return the rubric. Raises ConfigError."""
        return build(Rubric, self.rubric, "rubric")

    def ports(self) -> dict[str, Any]:
        """Import and construct the four stages and the budget. Raises ConfigError, ImportError or OSError."""
        made: dict[str, Any] = {name: self._port(name, self.stages[name]) for name in STAGES}
        if self.budget is not None:
            made["budget"] = _budget(imported(self.budget, "budget"), self.budget)
        return made

    def _port(self, name: str, stage: StageSpec) -> Any:
        if stage.prompt is not None:
            return self._prompt(stage, stage.prompt)
        if stage.command:
            places = {"{python}": sys.executable, "{folder}": self.folder}
            argv = [_filled(word, places) for word in stage.command]
            return CommandStage(
                STAGES[name],
                argv,
                timeout=stage.timeout,
                effect=stage.effect or "idempotent",
                env=stage.env,
                rubric=self.pipeline_rubric(),
            )
        found = imported(str(stage.python), f"stages.{name}")
        if not callable(found):
            kind = type(found).__name__
            raise ConfigError(f"stages.{name}: {stage.python!r} is a {kind}, which cannot be called")
        return found if stage.effect is None else _declared(found, stage.effect)

    def _prompt(self, stage: StageSpec, prompt: str) -> Any:
        from orchestrator.runtime.pipeline.prompt_stage import PromptStage

        settings = project_settings()
        form = ModelForm(stage.base_url or settings.base_url, settings.structured, settings.reasoning_field)
        model = model_of(stage.model or settings.model, form)
        schema = None if stage.output_schema is None else schema_from(Path(self.folder) / stage.output_schema)
        return PromptStage(
            model.llm,
            prompt,
            output_type=schema,
            instructions=stage.instructions,
            tools=[imported(one, "tool") for one in stage.tools],
            params=settings.params,
            retry=build(RetryPolicy, settings.retry, "retry"),
        )


def _declared(found: Any, effect: str) -> Any:
    """Return the same callable with the effect that the spec declares."""
    port: Any = functools.partial(found)
    port.effect = effect
    return port


def _filled(word: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        word = word.replace(place, value)
    return word


def _budget(found: Any, spec: str) -> Any:
    """Return a budget: the named object, or the result of the named class or function. Raises ConfigError."""
    if isinstance(found, type) or not _counts(found):
        if not callable(found):
            raise ConfigError(f"budget {spec!r} is a {type(found).__name__}; {_EXPECTED}")
        try:
            found = found()
        except Exception as error:
            raise ConfigError(f"budget {spec!r} raised {type(error).__name__}: {error}") from error
    if not _counts(found):
        raise ConfigError(f"budget {spec!r} gave a {type(found).__name__}; {_EXPECTED}")
    return found


_EXPECTED = (
    "a budget is an object with `is_exhausted()`, or a class or function without arguments that makes one"
)


def _counts(found: Any) -> bool:
    return callable(getattr(found, "is_exhausted", None))


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_file(file).decode())
    except (ValueError, RecursionError) as error:  # also raised for bytes that are not UTF-8
        raise ConfigError(f"{file} is not TOML ({error})") from error


def _data(file: Path) -> Any:
    """Return the requirements of a file: TOML and JSON as data, anything else as text."""
    if file.suffix == ".toml":
        return _toml(file)
    try:
        text = read_file(file).decode()
        return json.loads(text) if file.suffix == ".json" else text
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read ({error})") from error


def _checked(members: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the members with each stage constructed, so that an error contains the name of its stage."""
    stages = members.get("stages")
    if not isinstance(stages, Mapping):
        raise ConfigError(
            f"{where} has no [stages.planner], [stages.validator], [stages.implementer], [stages.judge]"
        )
    made: dict[str, StageSpec] = {}
    for name, stage in stages.items():
        if not isinstance(stage, Mapping):
            raise ConfigError(f"{where}: stages.{name} is a table: [stages.{name}]")
        made[name] = build(StageSpec, stage, f"stages.{name}")
    return {**members, "stages": made}


def _plain(spec: Any, where: str) -> None:
    try:
        json.dumps(spec, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: what is wanted is not plain data, as JSON has it ({error})") from error
