"""A pipeline in a TOML file: requirements, the agents of the four stages, limits and rubric.

    requirements = "requirements.toml"      # a file, from the folder of this one; or inline: spec = "…" or [spec]

    [limits]                                # members of PipelineLimits
    [rubric]                                # members of Rubric

    [stages.planner]                        # planner, validator, implementer, judge: each is one of
    python = "module:function"              #   a callable that takes the request
    command = ["{python}", "{folder}/x.py"] #   a program, started without a shell (see below)
    env = ["GITHUB_TOKEN"]                  #       further environment variables, or patterns; ["*"] is all of them
    prompt = "Plan it."                     #   a request to a model
    model = "openai:NAME"                   #       default: ORCHESTRATOR_MODEL

Modules are found in the working directory or among the installed packages, programs start in the working directory, as
with `orchestrator run`; only files that the spec names are found in its own folder. The content of the file is
stored with the run, so that `resume` needs neither the file nor its requirements.

The program of a stage is started without a shell, in the working directory, once for each execution of the stage. It
reads one JSON object with the members of the request: stage, spec, iteration, refinement, feedback (kind, text,
iteration of each), plan, validation, implementation, evaluation, remaining_tokens, key, run_id. Its output and its exit
code are the result:

    standard output    exit code   planner, implementer   validator                    judge
    JSON               0, or 1 *   the work               {"issues": [...]} or a list  {"score", "categories", …}
    text, or nothing   0           the text is the work   valid                        the best score
    half JSON, or a    0           the work               the stage failed             the stage failed
    number and its like
    text               1           the stage failed       each line is an error        the lowest score that is refined
    anything           any other   the stage failed       the stage failed             the stage failed

* 1 only for validator and judge. An object with only the members `content` and `tokens` is the work and its usage; the
answers of validator and judge may have `tokens` too. A stage that failed fails the run, with the end of its standard
error as the reason, so a validator that crashes approves nothing. A program that is cancelled, or takes longer than its
`timeout`, is killed with all its child processes.
"""

from __future__ import annotations

import functools
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.cli.launch import model_of
from orchestrator.cli.load import schema_from
from orchestrator.cli.redaction import bare
from orchestrator.cli.trust.consent import configuration, project_settings
from orchestrator.errors import ConfigError, RunError
from orchestrator.files.bounded import read_file
from orchestrator.files.named_object import imported
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.pipeline.model import (
    EFFECTS,
    Evaluation,
    Implementation,
    Issue,
    OrchestrationState,
    PipelineLimits,
    Plan,
    Rubric,
    Severity,
    StageRequest,
    Validation,
)
from orchestrator.providers.named_model import ModelForm
from orchestrator.runtime.pipeline.prompt_stage import PromptStage
from orchestrator.runtime.service.program import TooMuchSaid, check_names, inherited, last_words, run_program
from orchestrator.settings import build

_MAKERS = {OrchestrationState.PLANNING: Plan, OrchestrationState.IMPLEMENTING: Implementation}


class StageFailed(RunError):
    """The program of a stage failed; the message contains how it ended."""


class CommandStage:
    """A stage that is a program, as the head of this module describes it.

    `timeout` in seconds, 0 means no limit; `env` has the names or patterns of further variables that it gets.
    """

    def __init__(
        self,
        stage: OrchestrationState,
        argv: Sequence[str],
        *,
        timeout: float = 0.0,
        effect: str = "idempotent",
        env: Sequence[str] = (),
        rubric: Rubric,
    ) -> None:
        self.stage = stage
        self.argv = tuple(argv)
        self.effect = effect
        self.env = check_names(env)
        self._timeout = timeout or None
        self._rubric = rubric

    async def __call__(self, request: StageRequest) -> Any:
        """Execute the program for a request. Raises StageFailed, and OSError if it cannot be started."""
        code, out, err = await self._run(request)
        judged = self.stage in (OrchestrationState.VALIDATING, OrchestrationState.JUDGING)
        if code not in ((0, 1) if judged else (0,)):
            raise self._failed(f"ended with exit code {code}", err)
        text = out.decode(errors="replace").strip()
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict | list) or (data is not None and not judged):
            return self._typed(data)
        if judged and not code and (text[:1] in {"{", "["} or data is not None or text == "null"):
            raise self._failed(
                "printed what is no answer of this stage", err
            )  # perhaps truncated: it approves nothing
        if self.stage == OrchestrationState.VALIDATING:
            return self._validation(code, text, err)
        if self.stage == OrchestrationState.JUDGING:
            return self._evaluation(code, text, err)
        return _MAKERS[self.stage](text)

    def _typed(self, data: Any) -> Any:
        made = _MAKERS.get(self.stage)
        if (
            made is not None
            and isinstance(data, Mapping)
            and "content" in data
            and data.keys() <= {"content", "tokens"}
        ):
            return made(data["content"], data.get("tokens", 0))
        return data

    def _validation(self, code: int, text: str, err: bytes) -> Validation:
        if not code:
            return Validation()
        return Validation(
            tuple(
                Issue(Severity.ERROR, line.strip())
                for line in self._said(text, err).splitlines()
                if line.strip()
            )
        )

    def _evaluation(self, code: int, text: str, err: bytes) -> Evaluation:
        if not code:
            return Evaluation(self._rubric.top, comments=text)
        return Evaluation(self._rubric.hard, comments=self._said(text, err))

    def _said(self, text: str, err: bytes) -> str:
        """Return the problems that the program found; without any output it has probably crashed."""
        if not text:
            raise self._failed("ended with exit code 1 and printed nothing", err)
        return text

    async def _run(self, request: StageRequest) -> tuple[int, bytes, bytes]:
        given = json.dumps(plain(request)).encode()
        try:
            return await run_program(
                self.argv, given, call=request.key, seconds=self._timeout, environment=inherited(self.env)
            )
        except TimeoutError:
            raise self._failed(f"took longer than {self._timeout:g} s", b"") from None
        except TooMuchSaid as error:
            raise self._failed(str(error), b"") from None

    def _failed(self, how: str, err: bytes) -> StageFailed:
        said = last_words(err)
        return StageFailed(f"{self.stage.value}: {self.argv[0]} {how}" + (f": {said}" if said else ""))


def plain(request: StageRequest) -> dict[str, Any]:
    """Return a StageRequest as plain data."""
    return {
        "stage": request.stage.value,
        "spec": request.spec,
        "iteration": request.iteration,
        "refinement": request.refinement,
        "feedback": [
            {"kind": one.kind.value, "text": one.text, "iteration": one.iteration} for one in request.feedback
        ],
        "plan": None if request.plan is None else request.plan.content,
        "validation": validation_json(request.validation),
        "implementation": None if request.implementation is None else request.implementation.content,
        "evaluation": evaluation_json(request.evaluation),
        "remaining_tokens": request.remaining_tokens,
        "key": request.key,
        "run_id": request.run_id,
    }


def validation_json(found: Validation | None) -> dict[str, Any] | None:
    """Return the findings of a validator as plain data."""
    if found is None:
        return None
    issues = [
        {"severity": one.severity.value, "where": one.where, "message": one.message} for one in found.issues
    ]
    return {"ok": found.ok, "issues": issues}


def evaluation_json(found: Evaluation | None) -> dict[str, Any] | None:
    """Return the evaluation of a judge as plain data."""
    if found is None:
        return None
    return {"score": found.score, "categories": dict(found.categories), "comments": found.comments}


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
        try:
            json.dumps(found.spec, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{where}: what is wanted is not plain data, as JSON has it ({error})"
            ) from error
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
            settings = project_settings()
            form = ModelForm(
                stage.base_url or settings.base_url, settings.structured, settings.reasoning_field
            )
            schema = stage.output_schema
            return PromptStage(
                model_of(stage.model or settings.model, form).llm,
                stage.prompt,
                output_type=None if schema is None else schema_from(Path(self.folder) / schema),
                instructions=stage.instructions,
                tools=[imported(one, "tool") for one in stage.tools],
                params=settings.params,
                retry=build(RetryPolicy, settings.retry, "retry"),
            )
        if stage.command:
            argv = [
                word.replace("{python}", sys.executable).replace("{folder}", self.folder)
                for word in stage.command
            ]
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
        if stage.effect is None:
            return found
        port: Any = functools.partial(found)
        port.effect = stage.effect
        return port


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


def _data(file: Path) -> Any:
    """Return the requirements of a file: TOML and JSON as data, anything else as text."""
    try:
        text = read_file(file).decode()
        if file.suffix == ".toml":
            return tomllib.loads(text)
        return json.loads(text) if file.suffix == ".json" else text
    except (ValueError, RecursionError) as error:  # also raised for bytes that are not UTF-8
        how = "is not TOML" if file.suffix == ".toml" else "cannot be read"
        raise ConfigError(f"{file} {how} ({error})") from error


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
