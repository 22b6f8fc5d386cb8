"""An agent made from options of the command line: its model, its tools, its MCP servers.

The options are stored with the run for its resumption, without secrets: a journal is copied, exported and backed up
with all its content. A run stores the commands or addresses of its MCP servers and the names of environment variables;
the values are read again whenever it is resumed. Variables are named one by one, because the whole environment contains
the keys of the model.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orchestrator
from orchestrator.cli.load import params_from, schema_from
from orchestrator.cli.option import ReplacementOptions
from orchestrator.cli.output import complain, shown
from orchestrator.cli.redaction import bare
from orchestrator.cli.trust.consent import project_settings
from orchestrator.cli.trust.signature import signed
from orchestrator.cli.trust.tool_pin import ToolPins, is_address
from orchestrator.errors import ConfigError, MissingExtra, OrchestratorError, see_guide
from orchestrator.files.named_object import imported
from orchestrator.kernel.fact import Observer
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.llm.message import Message
from orchestrator.llm.port import LLM, Price
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.connection import MissingKey
from orchestrator.providers.named_model import SPELLINGS, ModelChoice, ModelForm
from orchestrator.providers.named_model import model_of as named_model
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.program import dropped
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.tools.spec import ToolSpec, as_tool

if TYPE_CHECKING:
    from orchestrator.providers.mcp import McpServer
    from orchestrator.providers.mcp.options import ServerEntry
    from orchestrator.settings import Settings

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
    """`prompt`: the prompt of a vendor's model contains the output schema; None: the vendor's own mode is used."""
    reasoning_field: str | None = None
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
            params={**settings.params, **params_from(given.pop("params"))},
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
        from orchestrator.settings import build

        async with AsyncExitStack() as stack:
            if (close := getattr(parts.model.llm, "aclose", None)) is not None:
                stack.push_async_callback(close)
            settings = project_settings()
            tools = parts.model.tools
            if parts.tools or self.mcp:  # the named ones, in place of those of the model

                def change(tool: ToolSpec) -> ToolSpec:
                    asks = self.approve and tool.effect == "irreversible"
                    return replace(tool, approval=True) if asks else tool

                own = [change(as_tool(tool)) for tool in parts.tools]
                given = ServerOptions(self.mcp_env, self.mcp_options, self.without)
                tools = [*own, *await tools_of(self.mcp, given, own, stack, change)]
            yield Agent(
                limited(parts.model.llm, settings),
                tools=tools,
                limits=limits,
                retry=build(RetryPolicy, self.retry, "retry"),
                output_type=schema_from(Path(self.output_schema)) if self.output_schema else None,
                instructions=self.instructions,
                params=self.params,
                runtime=Runtime(journal=journal, observers=observers, price=price_of(settings.prices)),
                launch=signed(self.plain()) if keep else None,
            )


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
    from orchestrator.settings import build

    return RateLimitedModel(llm, build(RateLimit, settings.rate_limit, "rate_limit"))


def price_of(own: Mapping[str, Any]) -> Price | None:
    """Return the price of tokens: by the host's own prices, else by those of genai-prices if it is installed.

    `currency` among the own prices is the currency of all of them. Those of genai-prices are in US dollars, so they are
    left out under another one.
    """
    from orchestrator.providers.price import genai_prices, price_table

    table = {name: prices for name, prices in own.items() if name != "currency"}
    currency = own.get("currency", "USD")
    known: list[Price] = [price_table(table, currency=currency)] if own else []
    if currency == "USD":
        with contextlib.suppress(MissingExtra):
            known.append(genai_prices())

    def price(model: str | None, tokens: Mapping[str, int]) -> float | None:
        return next((cost for one in known if (cost := one(model, tokens)) is not None), None)

    vars(price)["currency"] = currency
    return price if known else None


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


def rebuilt(launch: Launch, run_id: str, instead: ReplacementOptions) -> tuple[Launch, LoadedParts]:
    """Return the launch of a stored run with some parts replaced, and import the objects that it names.

    Objects of `instead` are found in the current folder, the others in the launch's own. Raises ConfigError that names
    the option that helps.
    """
    if instead.model is None and launch.model is None:
        raise ConfigError(
            f"run {run_id} was not started by the command line, so its model is not known: give --model SPEC "
            "and each tool with --tool MODULE:FUNCTION"
        )
    kept_url = None
    if not (instead.model or instead.base_url):  # the address belongs to the old model
        kept_url = launch.base_url
        if launch.base_url in launch.without:  # a server that answers 401 would end the run as failed
            kept_url = project_settings().base_url
            if kept_url is None or bare(kept_url) != bare(launch.base_url or ""):
                raise ConfigError(
                    f"run {run_id} was started with a user name, password or query in the address "
                    f"{launch.base_url}, which is not stored: give the whole address again with --base-url or "
                    "ORCHESTRATOR_BASE_URL"
                )
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
    with in_folder(launch.cwd):
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


def _or_else(option: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except (OrchestratorError, OSError) as error:
        said = str(error)
        if isinstance(error, OSError) and error.filename:
            said = f"{error.filename}: {error.strerror}"
        raise ConfigError(f"{said}; {option} names another") from error


# ---- models ----


def model_of(spec: str | None, form: ModelForm = ModelForm()) -> ModelChoice:  # noqa: B008 - frozen
    """Return the model that a spec names, with the keys of the settings, as `named_model.model_of`.

    Raises ConfigError, ReplayError, ImportError or OSError with one sentence, in the words of the command line.
    """
    if not spec:
        raise ConfigError(
            f"no model: give --model or set ORCHESTRATOR_MODEL; --model demo needs no key; {SPELLINGS}"
        )
    settings = project_settings()
    keys = {"openai": settings.openai_api_key, "anthropic": settings.anthropic_api_key}
    try:
        return named_model(spec, form, keys=keys, max_response_bytes=settings.max_response_bytes)
    except MissingKey as error:
        raise ConfigError(
            f"there is no API key for {error.vendor}: set {error.variable}; --model demo shows the agent without one; "
            f"{see_guide('providers')}"
        ) from error


# ---- MCP servers ----

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SHOWN = 200


def split_server(text: str) -> tuple[str | None, str]:
    """Split `NAME=COMMAND`; a text whose part before the first `=` is not a plain name is all command."""
    name, mark, where = text.partition("=")
    return (name, where) if mark and _NAME.fullmatch(name) else (None, text)


def kept(text: str) -> str:
    """Return the stored form of the text that names a server. A command is stored unchanged."""
    name, where = split_server(text)
    if not is_address(where):
        return text
    return bare(where) if name is None else f"{name}={bare(where)}"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options about all servers of a command line."""

    variables: tuple[str, ...] = ()
    """Names of environment variables that are passed to commands."""
    choices: tuple[str, ...] = ()
    """Options of single servers, as NAME.OPTION=VALUE."""
    without: tuple[str, ...] = ()
    """Addresses that were stored without user name, password and query."""


@dataclass(frozen=True, slots=True)
class NamedServer:
    """One server that `--mcp` names, itself or in a file."""

    text: str
    """The value of `--mcp`."""
    name: str | None
    where: str
    """Its URL or command line."""
    entry: ServerEntry | None = None
    """What a file says of it."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def described(self, given: ServerOptions, **more: Any) -> McpServer:
        """Return the server, not connected. Raises ConfigError."""
        from orchestrator.providers.mcp import McpServer

        options: dict[str, Any] = {"max_message_bytes": project_settings().max_response_bytes}
        options |= {} if self.name is None else {"name": self.name, "prefix": f"{self.name}_"}
        options |= {**self.options, **more}
        if self.entry is not None:
            return McpServer.of_entry(self.entry, **options)
        for name in given.variables:
            if "=" in name:
                name = name.partition("=")[0]  # noqa: PLW2901 - without the value, which may be secret
                raise ConfigError(
                    f"--mcp-env {name}=…: give the name alone; the value is read from the environment"
                )
            if name not in os.environ:
                raise ConfigError(
                    f"--mcp-env {shown(name, 80)}: no such environment variable is set; set it and start again"
                )
        # Names of variables cannot contain a `-`.
        settings = project_settings().mcp_headers
        headers = {name.replace("_", "-").lower(): value for name, value in settings.items()}
        for name, value in headers.items():
            if not _HEADER.fullmatch(name):
                raise ConfigError(f"setting mcp_headers: {shown(name, 80)!r} is no name of a header")
            text = value.get_secret_value()
            if not text.isascii() or not text.isprintable():
                raise ConfigError(f"setting mcp_headers.{name}: possible: printable ASCII on one line")
        environment = {name: os.environ[name] for name in given.variables}
        options |= {"headers": headers} if is_address(self.where) else {"env": environment}
        return McpServer.parse(self.where, **options)


def servers_of(texts: Iterable[str], given: ServerOptions) -> list[NamedServer]:
    """Return the servers that `--mcp` names; a JSON file names several. Raises ConfigError."""
    from orchestrator.providers.mcp.options import SERVER_OPTIONS, read_servers

    choices: dict[str, dict[str, Any]] = {}
    """Name of a server -> options of McpServer."""
    for text in given.choices:
        key, mark, value = text.partition("=")
        server, _, option_name = key.rpartition(".")
        option = SERVER_OPTIONS.get(option_name)
        if option is None or not (mark and server):
            forms = ", ".join(f"NAME.{one.form}" for one in SERVER_OPTIONS.values())
            raise ConfigError(f"--mcp-option {shown(text, 120)!r}: possible: {forms}")
        data = option.of_text(value)
        if not option.is_valid(data):
            raise ConfigError(f"--mcp-option {shown(text, 120)!r}: possible: {option.possible}")
        choices.setdefault(server, {})[option.name] = data
    found: list[NamedServer] = []
    for text in texts:
        name, where = split_server(text)
        if not is_server_file(where):
            found.append(NamedServer(text, name, where, None, choices.get(name or "", {})))
            continue
        entries = read_servers(Path(where))
        chosen = [entry for entry in entries if name in (None, entry.name)]
        if not chosen:
            raise ConfigError(
                f"{where} has no server {name!r} that is enabled; it has: "
                f"{', '.join(entry.name for entry in entries)}"
            )
        found += [
            NamedServer(text, entry.name, entry.where, entry, choices.get(entry.name, {})) for entry in chosen
        ]
    known = {one.name for one in found if one.name}
    for name in choices:
        if name not in known:
            have = f"known: {', '.join(sorted(known))}" if known else "--mcp NAME=COMMAND gives it one"
            raise ConfigError(f"--mcp-option {shown(name, 80)}: no server has that name; {have}")
    return found


def is_server_file(where: str) -> bool:
    """Return whether a text names a JSON file of servers, and no command or address."""
    return where.endswith(".json") and not is_address(where) and not any(map(str.isspace, where))


async def tools_of(
    servers: Sequence[str],
    given: ServerOptions,
    own: Iterable[ToolSpec],
    stack: AsyncExitStack,
    change: Callable[[ToolSpec], ToolSpec],
) -> list[ServerTools]:
    """Connect servers for as long as the stack is open; return their tools. `own` are the other tools of the agent.

    `change` is applied to each tool.

    A tool with the name of an earlier one is left out with a warning. Raises ConfigError that names the option that
    helps.
    """
    owners = {tool.name.casefold(): "--tool" for tool in own}
    tools: list[ServerTools] = []
    for one in servers_of(servers, given):
        pins = ToolPins.of(one.where)
        server = one.described(given, **pins.options())
        try:
            await stack.enter_async_context(server)
        except ConfigError as error:
            if one.text not in given.without:
                raise
            lost = "the user name, password and query of its address are not stored with the run"
            raise ConfigError(f"{error}; {lost}: --mcp URL gives them again") from error
        pins.keep(server.digests)
        found = ServerTools(server, frozenset(owners), change)
        said = f"--mcp {shown(kept(one.text), _SHOWN)!r}"
        for tool in server.tools:
            if (first := owners.get(tool.name.casefold())) is not None:
                complain(
                    f"tool {tool.name!r} of {said} is not offered: {first} has one of that name; --mcp NAME=COMMAND "
                    f"offers the tools of a server as NAME_{tool.name}"
                )
        owners |= dict.fromkeys((tool.name.casefold() for tool in found.tools), said)
        tools.append(found)
    return tools


class ServerTools:
    """The tools of one server for an agent, without those whose names are taken."""

    def __init__(
        self, server: McpServer, taken: frozenset[str], change: Callable[[ToolSpec], ToolSpec]
    ) -> None:
        self._server = server
        self._taken = taken
        self._change = change

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools as of the last `refresh`."""
        return [self._change(tool) for tool in self._server.tools if tool.name.casefold() not in self._taken]

    async def refresh(self) -> None:
        """Update the tools of the server."""
        await self._server.refresh()


async def prompt_messages(
    servers: Sequence[str], given: ServerOptions, named: str, arguments: Mapping[str, str]
) -> list[Message]:
    """Return the messages of a prompt `[SERVER/]NAME`. Raises ConfigError if no server, or several, have it."""
    server_name, mark, prompt = named.rpartition("/")
    found: dict[str, list[Message]] = {}
    known: list[str] = []
    for one in servers_of(servers, given):
        async with one.described(given) as server:
            if mark and server_name not in {one.name, server.name}:
                continue
            names = [each.name for each in await server.prompts()]
            known += [f"{one.name or server.name}/{name}" for name in names]
            if prompt in names:
                found[one.name or server.name] = await server.prompt(prompt, arguments)
    if len(found) != 1:
        why = "several servers have it" if found else "no server has it"
        raise ConfigError(
            f"--prompt {shown(named, 120)}: {why}; the prompts are: {', '.join(known) or 'none'}"
        )
    return next(iter(found.values()))
