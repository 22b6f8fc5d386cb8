"""The parts of an Rlm on the command line, which are stored with the run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from orchestrator.cli.launch import Launch, LoadedParts, model_of, price_of
from orchestrator.cli.load import params_from
from orchestrator.cli.rlm.isolation import level_of
from orchestrator.cli.trust.consent import project_settings
from orchestrator.cli.trust.signature import signed
from orchestrator.errors import ConfigError
from orchestrator.files.bounded import read_file, read_stream
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.record import Observer
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.rlm.code_mode import CODE_MODE
from orchestrator.machines.rlm.model import CODE_LIMITS, TOOLS_LIMITS, RlmLimits
from orchestrator.repl import ReplLimits, Sandbox, WorkerRepl
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.settings import build


@dataclass(frozen=True, slots=True, kw_only=True)
class RlmSpec:
    """The parts of an Rlm, as plain data; its limits are part of the run itself."""

    launch: Launch
    mode: Literal["code", "tools"] = "code"
    sub_model: str | None = None
    """A model spec for questions of the code; None: the same model."""
    least: str | None = None
    repl_limits: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.launch.tools and self.mode == "code":
            raise ConfigError("--tool goes with --mode tools; in mode code the model has a REPL")
        if "seconds" in self.repl_limits:  # the run sets the timeout of each block
            raise ConfigError("--repl-limit seconds: the wall time of a block is --limit code_seconds=...")

    @classmethod
    def of(cls, created: Mapping[str, Any], model: str | None = None) -> RlmSpec:
        """Return the parts in the first record of a run, optionally with another model. Raises ConfigError."""
        launch = Launch.of(created)
        if model is not None:  # the address belongs to the old model
            launch = replace(launch, model=model, base_url=None, params={})
        if launch.model is None:
            raise ConfigError(
                "it was not started by the command line, so its model is not known: give --model SPEC"
            )
        said = (created.get("launch") or {}).get("rlm") or {}
        known = {name: said[name] for name in ("sub_model", "least", "repl_limits") if name in said}
        return cls(launch=launch, mode="code" if created.get("graph") == CODE_MODE.name else "tools", **known)

    def plain(self) -> dict[str, Any]:
        """Return the data that is stored with the run."""
        own = {name: value for name, value in asdict(self).items() if name != "launch" and value}
        return {**self.launch.plain(), "rlm": own}

    def limits(self, changes: Iterable[str], base: Mapping[str, Any] | None = None) -> RlmLimits:
        """Return limits given as `name=value` over those of a run, else of the mode. Raises ConfigError."""
        own = asdict(CODE_LIMITS if self.mode == "code" else TOOLS_LIMITS) if base is None else base
        return build(RlmLimits, {**own, **params_from(changes)}, "limits")

    def repl(self, limits: RlmLimits) -> partial[WorkerRepl]:
        """Return the factory of the REPL of a run. Raises ConfigError for limits that cannot work."""
        seconds = {"seconds": limits.code_seconds} if limits.code_seconds else {}
        bounds = build(ReplLimits, {**seconds, **self.repl_limits}, "repl limits")
        return partial(WorkerRepl, limits=bounds, sandbox=Sandbox(least=level_of(self.least)))

    def rlm(self, limits: RlmLimits, journal: Journal, observers: Iterable[Observer]) -> Rlm:
        """Construct the Rlm. Raises ConfigError, ReplayError or OSError."""
        settings, launch = project_settings(), self.launch
        parts = LoadedParts.of(launch)
        return Rlm(
            parts.model.llm,
            mode=self.mode,
            sub_model=model_of(self.sub_model, launch.form).llm if self.sub_model else None,
            tools=parts.tools,
            limits=limits,
            retry=build(RetryPolicy, launch.retry, "retry"),
            instructions=launch.instructions,
            repl=self.repl(limits),
            params=launch.params,
            runtime=Runtime(journal=journal, observers=observers, price=price_of(settings.prices)),
            launch=signed(self.plain()),
        )


def context_from(file: Path, *, as_json: bool) -> Any:
    """Return the content of a file: its text, or its data if it is JSON; - is standard input.

    Raises ConfigError.
    """
    try:
        text = (
            read_stream(sys.stdin.buffer, "standard input") if str(file) == "-" else read_file(file)
        ).decode()
    except UnicodeDecodeError as error:
        name = "standard input" if str(file) == "-" else str(file)
        raise ConfigError(f"{name} is no text: byte {error.start:,} is not UTF-8") from error
    if not as_json:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no JSON: {error}") from error
