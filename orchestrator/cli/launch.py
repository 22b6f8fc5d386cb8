"""The construction of an agent from command-line options; the options are stored with the run for its resumption."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orchestrator
from orchestrator.cli.load import imported, schema_from
from orchestrator.cli.model import ModelChoice, ModelForm, model_of
from orchestrator.cli.output import complain, shown
from orchestrator.cli.redaction import bare
from orchestrator.cli.servers import ServerOptions, kept, tools_of
from orchestrator.cli.trust.consent import project_settings
from orchestrator.cli.trust.signature import signed
from orchestrator.errors import ConfigError, MissingExtra, OrchestratorError
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.kernel.record import Observer
from orchestrator.llm.port import LLM, Price
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.program import dropped
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.settings import Settings, build
from orchestrator.tools.spec import ToolSpec, as_tool

T = TypeVar("T")

_SEVERAL = ("tools", "mcp", "mcp_env", "mcp_options", "without")
"""Members of a launch that are tuples, and lists in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The parts of an agent, as plain data, without limits (they are part of the run) and without keys."""

    model: str | None = None
    """A model spec; None if another program than the command line started the run."""
    base_url: str | None = None
    structured: str | None = None
    reasoning_field: str | None = None
    """`prompt`: the prompt of a vendor's model contains the output schema; None: the vendor's own mode is used."""
    tools: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    """Command lines or URLs of MCP servers, each with an optional prefix `NAME=`."""
    mcp_env: tuple[str, ...] = ()
    """Names of environment variables that are passed to MCP servers that are commands."""
    mcp_options: tuple[str, ...] = ()
    """Options of single MCP servers, as NAME.OPTION=VALUE."""
    without: tuple[str, ...] = ()
    """Addresses of `base_url` and `mcp` that were stored without their user name, password and query."""
    approve: bool = False
    """A person is asked before each call of an irreversible tool."""
    instructions: str | None = None
    output_schema: str | None = None
    """Absolute path of a JSON schema."""
    params: Mapping[str, Any] = field(default_factory=dict)
    retry: Mapping[str, Any] = field(default_factory=dict)
    cwd: str = ""
    """The folder it was started in: modules are found there, and relative paths of tools refer to it."""
    forked_from: Mapping[str, Any] | None = None
    """Run and turn from which the conversation was forked."""

    @classmethod
    def here(cls, settings: Settings, **given: Any) -> Launch:
        """Return the launch of a command line in this folder; settings supply members that are not in `given`.

        Raises ConfigError.
        """
        for option in ("mcp_env", "mcp_options"):
            if given.get(option) and not given.get("mcp"):
                raise ConfigError(
                    f"--{option.replace('_', '-').rstrip('s')} is about MCP servers: name one with --mcp"
                )
        schema: Path | None = given.pop("output_schema", None)
        return cls(
            model=given.pop("model") or settings.model,
            base_url=given.pop("base_url") or settings.base_url,
            structured="prompt" if (given.pop("structured") or settings.structured) == "prompt" else None,
            reasoning_field=given.pop("reasoning_field", None) or settings.reasoning_field,
            output_schema=None if schema is None else str(schema.absolute()),
            params={**settings.params, **given.pop("params")},
            retry=dict(settings.retry),
            cwd=str(Path.cwd()),
            **given,
        )

    @classmethod
    def of(cls, created: Mapping[str, Any]) -> Launch:
        """Return the launch in the first record of a run; members of later versions are ignored."""
        said = created.get("launch") or {}
        known = {name: said[name] for name in cls.__dataclass_fields__ if said.get(name) is not None}
        return cls(**known | {name: tuple(known.get(name, ())) for name in _SEVERAL})

    @property
    def form(self) -> ModelForm:
        """The address of the model's server and the form of its requests."""
        return ModelForm(self.base_url, self.structured or "native", self.reasoning_field)

    def plain(self) -> dict[str, Any]:
        """Return the data that is stored with the run: no user name, password or query of an address."""
        url = self.base_url and bare(self.base_url)
        mcp = tuple(map(kept, self.mcp))
        pairs = [(url, self.base_url), *zip(mcp, self.mcp, strict=True)]
        cut = [now for now, given in pairs if now and now != given]
        now = replace(self, base_url=url, mcp=mcp, without=tuple(dict.fromkeys((*self.without, *cut))))
        return {name: value for name, value in asdict(now).items() if value not in (None, (), {}, "", False)}

    # ---- construction ----

    @asynccontextmanager
    async def agent(
        self,
        parts: LoadedParts,
        *,
        journal: Journal,
        observers: Iterable[Observer],
        limits: Limits | None = None,
        keep: bool = True,
    ) -> AsyncIterator[Agent]:
        """Yield the agent, with connections to its MCP servers that last as long as the block.

        Unless `keep` is False, its runs store the launch, so that they can be resumed with the same parts.
        Raises ConfigError or OSError.
        """
        async with AsyncExitStack() as stack:
            if (close := getattr(parts.model.llm, "aclose", None)) is not None:
                stack.push_async_callback(close)
            settings = project_settings()
            yield Agent(
                limited(parts.model.llm, settings),
                tools=await self._tools(parts, stack),
                limits=limits,
                retry=build(RetryPolicy, self.retry, "retry"),
                output_type=schema_from(Path(self.output_schema)) if self.output_schema else None,
                instructions=self.instructions,
                params=self.params,
                runtime=Runtime(journal=journal, observers=observers, price=price_of(settings.prices)),
                launch=signed(self.plain()) if keep else None,
            )

    async def _tools(self, parts: LoadedParts, stack: AsyncExitStack) -> Any:
        """Return the tools: the named ones, else those of the model."""
        if not parts.tools and not self.mcp:
            return parts.model.tools
        change = _asking if self.approve else _same
        tools = [change(as_tool(tool)) for tool in parts.tools]
        given = ServerOptions(self.mcp_env, self.mcp_options, self.without)
        return [*tools, *await tools_of(self.mcp, given, tools, stack, change)]

    @contextmanager
    def in_folder(self) -> Iterator[None]:
        """Inside the block, use the folder that the run was started in. Raises ConfigError if it no longer exists."""
        with in_folder(self.cwd):
            yield


@contextlib.contextmanager
def in_folder(folder: str | None) -> Iterator[None]:
    """Inside the block, use the folder that a run was started in. Raises ConfigError if it no longer exists."""
    if not folder or folder == os.getcwd():  # noqa: PTH109 - compared as text
        yield
        return
    if not Path(folder).is_dir():
        raise ConfigError(f"the folder {folder} that the run was started in is gone: make it again")
    with contextlib.chdir(folder):
        yield


def limited(llm: LLM, settings: Settings) -> LLM:
    """Return the model behind the rate limits of the settings."""
    if not settings.rate_limit:
        return llm
    from orchestrator.providers.limiter import RateLimit, RateLimitedModel

    return RateLimitedModel(llm, build(RateLimit, settings.rate_limit, "rate_limit"))


def price_of(own: Mapping[str, Any]) -> Price | None:
    """Return the price of tokens: by the host's own prices, else by those of genai-prices if it is installed."""
    from orchestrator.providers.price import genai_prices, price_table

    known: list[Price] = [price_table(own)] if own else []
    with contextlib.suppress(MissingExtra):
        known.append(genai_prices())

    def price(model: str | None, tokens: Mapping[str, int]) -> float | None:
        return next((cost for one in known if (cost := one(model, tokens)) is not None), None)

    return price if known else None


def _same(tool: ToolSpec) -> ToolSpec:
    return tool


def _asking(tool: ToolSpec) -> ToolSpec:
    return replace(tool, approval=True) if tool.effect == "irreversible" else tool


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """Objects of user code: imported, not used yet."""

    model: ModelChoice
    tools: Sequence[Any] = ()

    @classmethod
    def of(cls, launch: Launch) -> LoadedParts:
        """Import the objects that a launch names, in the current folder. Raises ConfigError, ReplayError or OSError."""
        model = model_of(launch.model, launch.form)
        return cls(model, [imported(spec, "tool") for spec in launch.tools])


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Parts of an agent that replace those a stored run was started with."""

    model: str | None = None
    base_url: str | None = None
    tools: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    mcp_env: tuple[str, ...] = ()
    mcp_options: tuple[str, ...] = ()


def rebuilt(launch: Launch, run_id: str, instead: Replacement) -> tuple[Launch, LoadedParts]:
    """Return the launch of a stored run with some parts replaced, and import the objects that it names.

    Objects of `instead` are found in the current folder, the others in the launch's own. Raises ConfigError that names
    the option that helps.
    """
    if instead.model is None and launch.model is None:
        raise ConfigError(
            f"run {run_id} was not started by the command line, so its model is not known: give --model SPEC "
            "and each tool with --tool MODULE:FUNCTION"
        )
    # The address belongs to the old model.
    kept_url = None if instead.model or instead.base_url else _address(launch, run_id)
    now = replace(
        launch,
        model=instead.model or launch.model,
        base_url=instead.base_url or kept_url,
        tools=instead.tools or launch.tools,
        mcp=instead.mcp or launch.mcp,
        mcp_env=instead.mcp_env or launch.mcp_env,
        mcp_options=instead.mcp_options or launch.mcp_options,
        without=tuple(one for one in launch.without if one not in (instead.base_url, *instead.mcp)),
        cwd=launch.cwd or str(Path.cwd()),
    )
    load = partial(_or_else, "--model", partial(model_of, now.model, now.form))
    given = None if instead.model is None else load()
    own = [_or_else("--tool", partial(imported, spec, "tool")) for spec in instead.tools]
    with launch.in_folder():
        found = given or load()
        old = () if own else launch.tools
        tools = own or [_or_else("--tool", partial(imported, spec, "tool")) for spec in old]
    return now, LoadedParts(found, tools)


def print_dropped_variables(programs: Sequence[Iterable[str]], folder: str) -> None:
    """Print the names of the environment variables that no program of a run gets.

    `programs` has, for each program, the names that it gets in addition to the usual ones; `folder` is that of the
    file that names the programs. Those of our own examples need none.
    """
    names = dropped(programs)
    if programs and names and not Path(folder).is_relative_to(Path(orchestrator.__file__).parent):
        complain(
            f"the programs of this run do not get {len(names)} environment variables, which may be secret: "
            f'{shown(", ".join(names), 2_000)}; env = ["NAME"] passes one to a program, env = ["*"] all'
        )


def named(agent: Agent, head: RunHead) -> Agent:
    """Return the agent of the command line under name and version of the agent of a stored run."""
    if not (head.agent or head.agent_version):
        return agent
    return agent.replace(name=head.agent or None, version=head.agent_version or None)


def _address(launch: Launch, run_id: str) -> str | None:
    """Return the address of a stored run's model, with the user name, password and query that were not stored with it.

    Raises ConfigError without them, before the run is changed: a server that answers 401 would end the run as failed.
    """
    if launch.base_url not in launch.without:
        return launch.base_url
    given = project_settings().base_url
    if given is not None and bare(given) == bare(launch.base_url or ""):
        return given
    raise ConfigError(
        f"run {run_id} was started with a user name, password or query in the address {launch.base_url}, which is "
        "not stored: give the whole address again with --base-url or ORCHESTRATOR_BASE_URL"
    )


def _or_else(option: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except (OrchestratorError, OSError) as error:
        said = str(error)
        if isinstance(error, OSError) and error.filename:
            said = f"{error.filename}: {error.strerror}"
        raise ConfigError(f"{said}; {option} names another") from error
