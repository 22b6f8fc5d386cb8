"""How the command line puts an agent together: named by options, kept with the run, put together again to resume it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.cli.load import imported, schema_from
from orchestrator.cli.model import Model, model_of
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.record import Observer
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.retry import RetryPolicy
from orchestrator.runtime.llm_loop import Orchestrator
from orchestrator.settings import Settings, build

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What an agent is made of, as plain data. Limits are not in it: they are part of the run itself."""

    model: str | None = None
    """A model spec; None where another program than the command line started the run."""
    tools: tuple[str, ...] = ()
    instructions: str | None = None
    output_schema: str | None = None
    """Absolute path of a JSON schema."""
    retry: Mapping[str, Any] = field(default_factory=dict)
    cwd: str = ""
    """The folder it was started in: modules are found there, and tools that take relative paths mean those of it."""
    forked_from: Mapping[str, Any] | None = None
    """Run and turn that the conversation is from."""

    @classmethod
    def here(
        cls,
        model: str | None,
        tools: Sequence[str],
        instructions: str | None,
        output_schema: Path | None,
        settings: Settings,
    ) -> Launch:
        """Return what a command line in this folder says."""
        return cls(
            model=model or settings.model,
            tools=tuple(tools),
            instructions=instructions,
            output_schema=None if output_schema is None else str(output_schema.absolute()),
            retry=dict(settings.retry),
            cwd=str(Path.cwd()),
        )

    @classmethod
    def of(cls, created: Mapping[str, Any]) -> Launch:
        """Return what a run's first record says; members of later versions are left out."""
        kept = created.get("launch") or {}
        known = {name: kept[name] for name in cls.__dataclass_fields__ if kept.get(name) is not None}
        return cls(**known | {"tools": tuple(known.get("tools", ()))})

    def plain(self) -> dict[str, Any]:
        """Return what is kept with the run."""
        return {name: value for name, value in asdict(self).items() if value not in (None, (), {}, "")}

    # ---- putting together ----

    def agent(
        self,
        parts: Parts,
        *,
        journal: Journal,
        observers: Iterable[Observer],
        limits: Limits | None = None,
    ) -> Orchestrator:
        """Put the agent together. Raises ConfigError or OSError; nothing is started."""
        return Orchestrator(
            parts.model.llm,
            tools=parts.tools or parts.model.tools,
            limits=limits,
            retry=build(RetryPolicy, self.retry, "retry"),
            output_type=schema_from(Path(self.output_schema)) if self.output_schema else None,
            instructions=self.instructions,
            journal=journal,
            observers=observers,
            launch=self.plain(),
        )

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Inside the block, be in the folder that the run was started in. Raises ConfigError when it is gone."""
        if not self.cwd or self.cwd == os.getcwd():  # noqa: PTH109 - compared as text
            yield
            return
        if not Path(self.cwd).is_dir():
            raise ConfigError(f"the folder {self.cwd} that the run was started in is gone: make it again")
        with contextlib.chdir(self.cwd):
            yield


@dataclass(frozen=True, slots=True)
class Parts:
    """What user code gave: imported, not used yet."""

    model: Model
    tools: Sequence[Any] = ()

    @classmethod
    def of(cls, launch: Launch) -> Parts:
        """Import what a launch names, in the present folder. Raises ConfigError, ReplayError or OSError."""
        return cls(model_of(launch.model), [imported(spec, "tool") for spec in launch.tools])


def rebuilt(launch: Launch, run_id: str, model: str | None, tools: Sequence[str]) -> Parts:
    """Import what a stored run was launched with, options first: those in the present folder, the rest in its own.

    Raises ConfigError that names the option that helps.
    """
    if model is None and launch.model is None:
        raise ConfigError(
            f"run {run_id} was not started by the command line, so nobody knows its model: give --model SPEC "
            "and each tool with --tool MODULE:FUNCTION"
        )
    given = None if model is None else _or_else("--model", partial(model_of, model))
    own = [_or_else("--tool", partial(imported, spec, "tool")) for spec in tools]
    with launch.at_home():
        found = given or _or_else("--model", partial(model_of, launch.model))
        kept = () if own else launch.tools
        return Parts(found, own or [_or_else("--tool", partial(imported, spec, "tool")) for spec in kept])


def _or_else(option: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except (OrchestratorError, OSError) as error:
        said = str(error)
        if isinstance(error, OSError) and error.filename:
            said = f"{error.filename}: {error.strerror}"
        raise ConfigError(f"{said}; {option} names another") from error
