"""Define tools: the functions that a model may call, with schema, argument check, limits and context.

The schema and the check of a tool's arguments come from one pydantic type, so the announced schema and the enforced
one cannot differ. `json_schema` checks the arguments of a tool that is made from a raw JSON schema.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import re
import threading
import typing
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    cast,
    get_args,
    get_origin,
    overload,
)

from pydantic_core import from_json, to_jsonable_python
from typing_extensions import TypeVar  # with a default, which `typing` has since Python 3.13

from orchestrator.argument_names import ELSEWHERE, refuse_unknown
from orchestrator.errors import ConfigError
from orchestrator.llm.json_schema import UnusableSchema, checker
from orchestrator.llm.message import KINDS, PartKind
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.tools.argument import (
    BadArguments,
    Dump,
    Read,
    canonical_form,
    exact_arguments,
    listed,
    schema_dump,
)
from orchestrator.tools.input_request import NO_INPUT, CallInput
from orchestrator.tools.sampling import Sampler
from orchestrator_guards import Verdict

_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_ENTRY = re.compile(r"(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into its first paragraph and its parameters' descriptions."""
    lines = inspect.cleandoc(text).splitlines()
    start = next((number for number, line in enumerate(lines) if _SECTION.fullmatch(line)), len(lines))
    described: dict[str, str] = {}
    current, margin = "", 0
    for line in itertools.takewhile(lambda line: not line or line[0].isspace(), lines[start + 1 :]):
        indent = len(line) - len(line.lstrip())
        entry = _ENTRY.fullmatch(line.strip())
        if entry and (not current or indent <= margin):
            current, margin = entry[1], indent
            described[current] = entry[2]
        elif current:
            described[current] = f"{described[current]} {line.strip()}".strip()
    return " ".join("\n".join(lines[:start]).partition("\n\n")[0].split()), described


DepsT = TypeVar("DepsT", default=Any)
DepsT_co = TypeVar("DepsT_co", default=Any, covariant=True)
DepsT_contra = TypeVar("DepsT_contra", default=Any, contravariant=True)

_SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True)  # with slots `ToolContext[Bank](...)` is a TypeError on Python 3.11
class ToolContext(Generic[DepsT_co]):
    """The context of one call, for a tool whose first parameter has this type, and for an output validator.

    `ToolContext[Bank]` says that `deps` is a Bank. A type checker then accepts the tool only in an `Agent[Bank, ...]`.

    Example:
        @tool(effect="idempotent")
        def pay(context: ToolContext, invoice: int) -> str:
            "Pay an invoice."
            return bank.pay(invoice, key=context.idempotency_key, timeout=context.remaining())
    """

    run_id: str
    idempotency_key: str
    """The same for every try of this call, also after a crash; pass it to the service that the tool calls."""
    deps: DepsT_co = cast("Any", None)  # noqa: RUF009 - `cast` returns None here
    """The handles that the host gave the agent or the run."""
    deadline: float | None = None
    """The time at which the call is given up, in seconds of `clock.monotonic()`; None means never."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when no caller waits for the result any more. A thread cannot be stopped from outside, so it must check
    this."""
    progress: Callable[[str], None] = lambda _: None
    """Reports progress in a sentence, as the event ToolProgress of the run's stream."""
    restart_timeout: Callable[[], None] = lambda: None
    """Gives the call the whole `timeout` of its tool again, from now on; `deadline` is not changed. Its total timeout
    and the limits of the run still apply. To be called in the event loop."""
    stored_result: Callable[[str], Awaitable[str]] | None = None
    """Returns the whole text of an earlier result of the run that was cut, by its handle. None: nothing is stored."""
    clock: Clock = _SYSTEM_CLOCK
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON data that the host gave the run."""
    tags: Mapping[str, str] = field(default_factory=dict)
    reads: Collection[PartKind] = KINDS
    """Kinds of content parts that the model reads, so that a tool can return text in place of others."""
    retry: int = 0
    """How often the model was asked to try again so far: by this tool in consecutive turns, or for its final answer."""
    input: CallInput = NO_INPUT
    """The answers of people to an InputRequired of this call."""
    sample: Sampler | None = None
    """Asks the model of the run within the budgets of the run: `await context.sample(SamplingRequest(...))`. None
    outside a run of the LLM loop."""

    def remaining(self) -> float | None:
        """Return the seconds until the deadline, never below 0; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - self.clock.monotonic())


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run, as its host started it.

    Example:
        def connect(run: RunContext) -> Database:
            return Database(tenant=run.metadata["tenant"])

        agent = Agent(llm, deps=connect)
    """

    run_id: str
    metadata: Mapping[str, Any]
    """The JSON data that the host gave the run. Not to be changed."""
    tags: Mapping[str, str]
    deps: Any = None
    """The host's own handles; None for the factory that makes them."""


Effect: TypeAlias = Literal["pure", "idempotent", "compensable", "irreversible"]
"""The effect of running a call twice; recovery decides by it. The default is the worst case, `irreversible`."""
REPEATABLE: Final = frozenset(("pure", "idempotent"))
"""Effects of a call that can be run again without another effect."""
Progress: TypeAlias = Literal["strict", "poll", "cumulative"]
"""How the no-progress guard counts a repeated call."""

MAX_RESULT_CHARS: Final = 20_000
"""Characters of a result that are kept by default."""
OnToolError: TypeAlias = Literal["return", "raise_bugs", "raise"]
"""What an exception of a tool does besides being the result of its call.

`return`: nothing, the model reads it and the run continues. `raise_bugs`: the run ends if the exception is one of
`orchestrator.tools.tool_error.BUGS`. `raise`: the run ends.
"""

ApprovalRule: TypeAlias = Callable[[dict[str, Any]], bool | Verdict]
"""Decides from the canonical arguments of a call whether a person must approve it: True, or a Verdict that is not ok.

It is a pure function. If it raises or returns another value, the person is asked and sees that fact. The question
shows guard, observed value, limit and detail of a Verdict.
"""


def _by_schema(_: str) -> dict[str, Any]:
    """Mark a tool as checked by `parameters`; ToolSpec replaces this with the real check."""
    raise NotImplementedError


@dataclass(frozen=True, eq=False)
class ToolSpec(Generic[DepsT_contra]):
    """One tool, built by `@tool` or from a JSON schema. `ToolSpec[Bank]` reads a Bank from its ToolContext.

    A call of it calls the wrapped function unchanged. The handler receives the arguments by keyword, after the
    ToolContext if its first parameter is annotated so.

    Raises:
        ConfigError: Options or parameters cannot work; the message lists all faults.

    Example:
        >>> schema = {"type": "object", "properties": {"city": {"type": "string"}}}
        >>> ToolSpec("weather", "Return the weather of a city.", schema, lambda city: "sunny").name
        'weather'
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of an object."""
    call: Callable[..., Any]
    """Awaited when async, else run in a thread."""
    _: KW_ONLY
    effect: Effect = "irreversible"
    undo: Callable[..., Any] | None = None
    """Reverts a finished call and takes the same arguments as `call`. For `compensable` only, and required there."""
    timeout: float | None = None
    """Seconds that one call may run without progress; None means no limit."""
    total_timeout: float | None = None
    """Seconds that one call may run in all, whatever progress it reports. None means nine tenths of the time that the
    state of its run has left, 0 no limit. Time in which the call waits for a person or for the model does not count."""
    approval: bool | ApprovalRule = False
    """Whether a person must approve each call, or the rule that decides it for each call."""
    sequential: bool = False
    """Whether a call runs alone, after all earlier calls of its turn and before all later ones."""
    max_result_chars: int = MAX_RESULT_CHARS
    """Characters of a result that are kept; 0 means no limit."""
    progress: Progress = "strict"
    """How the no-progress guard counts a repeated call."""
    plain_text: bool = False
    """True if a failure is also recognised from the text of a result."""
    max_concurrency: int = 0
    """Maximum concurrent calls of this tool over all runs; 0 leaves only the limit of the turn."""
    retries: int = 2
    """Consecutive turns in which a ModelRetry of this tool asks the model to try again; the next one is an error."""
    errors: OnToolError | None = None
    """Whether an exception of this tool ends the run. None means `Limits.on_tool_error`."""
    kind: str = field(default="tool", repr=False)
    """Its kind in metrics and dumps of abandoned work: `tool`, or `mcp` for a tool of an MCP server."""
    read: Read = field(default=_by_schema, repr=False)
    """Converts the text of an object to keyword arguments; by default checks it against `parameters`."""
    dump: Dump | None = field(default=to_jsonable_python, repr=False)
    """Converts these back to JSON data for the canonical form; with None the text is its own canonical form."""
    takes_context: bool = field(init=False)
    deps_type: Any = field(init=False, repr=False)
    """The type of `deps` that its ToolContext names; None if it can do without."""
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        _refuse(self.name, _option_faults(self))
        try:
            context = _signature(self.call, self.name).context
        except (ConfigError, ValueError):
            context = None  # only the handler of a raw schema can be unreadable here
        object.__setattr__(self, "takes_context", context is not None)
        object.__setattr__(self, "deps_type", _deps_type(context))
        object.__setattr__(self, "is_async", _is_async(self.call))
        if self.read is _by_schema:
            object.__setattr__(self, "parameters", self.parameters or {"type": "object", "properties": {}})
            read = _schema_reader(self.name, self.parameters)
            object.__setattr__(self, "read", read)
            object.__setattr__(self, "dump", schema_dump(self.parameters, read))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped function unchanged: no check, no thread, no timeout."""
        return self.call(*args, **kwargs)

    def to_openai(self) -> dict[str, Any]:
        """Return the tool in OpenAI chat form."""
        about = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": about}


class ToolFunction(Protocol):
    """A function that can become a tool.

    It has a name. A ToolSpec has none, so a type checker does not accept one with the wrong `deps` as a function.
    """

    __name__: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class ToolDecorator(Protocol):
    """The decorator that `tool(...)` returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[ToolContext[DepsT], ...], Any], /
    ) -> ToolSpec[DepsT]: ...
    @overload
    def __call__(self, function: Callable[..., Any], /) -> ToolSpec[object]: ...


@overload
def tool(function: Callable[Concatenate[ToolContext[DepsT], ...], Any], /) -> ToolSpec[DepsT]: ...
@overload
def tool(function: Callable[..., Any], /) -> ToolSpec[object]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "irreversible",
    undo: Callable[..., Any] | None = None,
    timeout: float | None = None,
    total_timeout: float | None = None,
    approval: bool | ApprovalRule = False,
    sequential: bool = False,
    max_result_chars: int = MAX_RESULT_CHARS,
    progress: Progress = "strict",
    plain_text: bool = False,
    max_concurrency: int = 0,
    retries: int = 2,
    errors: OnToolError | None = None,
) -> ToolDecorator: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Any,
) -> ToolSpec | Callable[[Callable[..., Any]], ToolSpec]:
    """Make a tool of a function, as `@tool` or `@tool(effect="pure", timeout=10)`.

    The schema comes from the type hints, which each parameter needs. `name` is by default the function's name. The
    descriptions come from `description` or the docstring: its first paragraph and its `Args:` section. Raises
    ConfigError for an unknown or invalid option, and for a parameter that no model can fill. The options:

        effect="irreversible"       effect of a second run: "pure", "idempotent", "compensable", "irreversible"
        undo=None                   function that reverts a call; with "compensable", and required there
        timeout=None                seconds (float) that one call may run without progress; None is no limit
        total_timeout=None          seconds (float) that one call may run in all; 0 is no limit, None 9/10 of its state
        approval=False              bool or ApprovalRule: a person must approve each call, or those of the rule
        sequential=False            bool: runs alone, after all earlier calls of its turn and before all later ones
        max_result_chars=20_000     characters (int) of a result that are kept; 0 is no limit
        progress="strict"           how repeated calls count: "strict", "poll" or "cumulative"
        plain_text=False            bool: a failure is also recognised from the text of a result
        max_concurrency=0           concurrent calls (int) over all runs; 0 leaves only the limit of the turn
        retries=2                   consecutive ModelRetry (int) that ask the model again; 0: each one is an error
        errors=None                 "raise_bugs" or "raise": an exception ends the run; "return": the model reads it
    """
    refuse_unknown("a tool has no option", options, _OPTIONS, ELSEWHERE)

    def build(target: Callable[..., Any]) -> ToolSpec:
        titled, text = _name_and_text(target)
        title = name or titled
        signature = _signature(target, title)
        _refuse(title, _signature_faults(target, signature.parameters))
        summary, described = split_docstring(text)
        from orchestrator.tools.typed_argument import typed_reader  # loads pydantic

        schema, read, dump = typed_reader(title, signature.parameters, described)
        return ToolSpec(title, description or summary, schema, target, read=read, dump=dump, **options)

    return build if function is None else build(function)


SERVER: Final = "mcp:"
"""Prefix of the digest of a tool of an MCP server: the server declares it, not the agent."""

_OPTIONS = ["name", "description"] + [
    item.name
    for item in fields(ToolSpec)
    if item.init and item.kw_only and item.name not in {"dump", "kind", "read"}
]


def as_tool(source: ToolSpec | Callable[..., Any]) -> ToolSpec:
    """Return a ToolSpec unchanged, and a plain callable as an irreversible tool. Raises ConfigError."""
    if isinstance(source, ToolSpec):
        return source
    _refuse_foreign(source)
    return tool(source)


def _refuse_foreign(source: object) -> None:
    """Raise ConfigError for a tool in the form of another library: a schema without a function, or an object."""
    if isinstance(source, Mapping):
        named = source.get("function", source)
        name = named.get("name", "") if isinstance(named, Mapping) else ""
        raise ConfigError(
            f"tool {name!r} is a schema without a function; give the function, or "
            "ToolSpec(name, description, parameters, function)"
        )
    if isinstance(source, functools.partial) or inspect.isroutine(source):
        return
    kind, name = type(source).__name__, getattr(source, "name", "")
    for member in ("func", "function", "coroutine"):
        if callable(getattr(source, member, None)):
            raise ConfigError(
                f"tool {name!r} is a {kind}; give its function: tools=[{name or 'it'}.{member}]"
            )
    if callable(getattr(source, "on_invoke_tool", None)):
        raise ConfigError(
            f"tool {name!r} is a {kind}; give the function that it was made of, without its decorator"
        )


def canonical_arguments(spec: ToolSpec, text: str) -> str:
    """Return the canonical form (JSON text) of the arguments of a call.

    A person approves this text, the journal stores it, and the tool receives it. Raises BadArguments.
    """
    return canonical_form(text, spec.read, spec.dump)[0]


def parse_arguments(spec: ToolSpec, text: str, *, exact: bool = False) -> dict[str, Any]:
    """Return the checked keyword arguments for `spec.call`, from the text of a call as received.

    They are read from its canonical form. With `exact` the text must already have that form. Raises BadArguments.
    """
    if exact:
        return exact_arguments(text, spec.read, spec.dump)
    form, arguments = canonical_form(text, spec.read, spec.dump)
    return spec.read(form) if arguments is None else arguments


def _refuse(name: str, faults: Sequence[str]) -> None:
    if faults:
        raise ConfigError(f"tool {name!r}: {'; '.join(faults)}")


def _option_faults(spec: ToolSpec) -> list[str]:
    """Return the faults in the fields of a tool, as sentences."""
    faults: list[str] = []
    words = {
        "effect": get_args(Effect),
        "progress": get_args(Progress),
        "errors": (*get_args(OnToolError), None),
    }
    for option, known in words.items():
        if (value := getattr(spec, option)) not in known:
            faults.append(f"{option} is {value!r}; possible: {', '.join(map(repr, known))}")
    rule: object = spec.approval
    if not isinstance(rule, bool) and (not callable(rule) or _is_async(rule)):
        faults.append(f"approval is {rule!r}; possible: True, False, or a plain function of the arguments")
    numbers = {"max_result_chars": spec.max_result_chars, "max_concurrency": spec.max_concurrency}
    faults += [f"{name} is {n}; possible: 0 for no limit, or more" for name, n in numbers.items() if n < 0]
    if spec.retries < 0:
        faults.append(f"retries is {spec.retries}; possible: 0 for none, or more")
    if (spec.effect == "compensable") != (spec.undo is not None):
        faults.append("effect 'compensable' and undo need each other: give both or neither")
    if spec.timeout is not None and not (spec.timeout > 0 and math.isfinite(spec.timeout)):
        faults.append(f"timeout is {spec.timeout!r}; possible: seconds above 0, or None for no limit")
    total = spec.total_timeout
    if total is not None and not (total >= 0 and math.isfinite(total)):
        faults.append(
            f"total_timeout is {total!r}; possible: seconds, 0 for no limit, or None for the time of the state"
        )
    return faults


class _Signature(NamedTuple):
    context: Any
    """Annotation of the ToolContext, or None."""
    parameters: tuple[inspect.Parameter, ...]
    """The parameters that the model fills, with resolved annotations."""


def function_of(target: object) -> object:
    """Return the innermost function of a callable: its file is the tool's own, its globals resolve annotations."""
    while True:
        if isinstance(target, functools.partial):  # first: since Python 3.14 a partial counts as a routine
            target = target.func
        elif inspect.isroutine(target) and not hasattr(target, "__wrapped__"):
            return target
        else:
            target = getattr(target, "__wrapped__", None) or getattr(type(target), "__call__")  # noqa: B004, B009


def _name_and_text(target: object) -> tuple[str, str]:
    """Return name and docstring of a function, or of the class of an object with `__call__`."""
    function = function_of(target)
    named = function if inspect.isroutine(target) or isinstance(target, functools.partial) else type(target)
    return getattr(named, "__name__", ""), function.__doc__ or named.__doc__ or ""


def _is_async(target: object) -> bool:
    """Return whether a call gives a coroutine. `__wrapped__` does not count: a sync wrapper may run the coroutine."""
    asked = (target, getattr(type(target), "__call__", None))  # noqa: B004  the method itself is needed
    return any(inspect.iscoroutinefunction(function) for function in asked)


def _signature(target: object, name: str) -> _Signature:
    """Read the parameters of a callable. Raises ConfigError for a type hint that cannot be resolved."""
    if not callable(target) or isinstance(target, type | ToolSpec):
        raise ConfigError(f"tool {name!r}: a {type(target).__name__} cannot become a tool; pass a function")
    # The host sets the keywords of a partial (a key, a tenant): the model neither sees nor sets them.
    bound = target.keywords if isinstance(target, functools.partial) else {}
    given = [p for p in inspect.signature(target).parameters.values() if p.name not in bound]
    parameters = _resolved(given, function_of(target), name)
    if parameters and _is_context(parameters[0].annotation):
        return _Signature(parameters[0].annotation, tuple(parameters[1:]))
    return _Signature(None, tuple(parameters))


def _is_context(annotation: object) -> bool:
    return annotation is ToolContext or get_origin(annotation) is ToolContext


def _deps_type(context: object) -> Any:
    """Return the type of `deps` that a ToolContext names, or None if it may be None, or any object."""
    named = next(iter(get_args(context)), Any)
    is_open = named in {Any, object} or isinstance(named, TypeVar)
    return None if is_open or type(None) in {named, *get_args(named)} else named


def _resolved(parameters: list[inspect.Parameter], function: object, name: str) -> list[inspect.Parameter]:
    """Evaluate string annotations except the return type, which may exist for type checkers only."""

    def holder() -> None: ...

    holder.__annotations__ = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    known = {"ToolContext": ToolContext, **getattr(function, "__globals__", {})}
    try:
        hints = typing.get_type_hints(holder, globalns=known, include_extras=True)
    except NameError as error:
        where = "which its module does not define at the top level"
        raise ConfigError(f"tool {name!r}: a type hint names {error.name!r}, {where}") from error
    except Exception as error:
        raise ConfigError(f"tool {name!r}: a type hint cannot be read: {error}") from error
    return [p.replace(annotation=hints.get(p.name, p.empty)) for p in parameters]


def _signature_faults(target: object, parameters: Sequence[inspect.Parameter]) -> list[str]:
    """Return the reasons why a model could not fill these parameters, as sentences."""
    faults: list[str] = []
    for p in parameters:
        if p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD}:
            faults.append(f"parameter {p.name!r} takes any number of arguments; name each one")
        elif p.kind is p.POSITIONAL_ONLY:
            faults.append(f"parameter {p.name!r} is positional-only; a model passes arguments by name")
        elif p.annotation is p.empty and p.name != "self":
            faults.append(f"parameter {p.name!r} has no type; annotate it, with Any for any JSON value")
        elif _is_context(p.annotation):
            faults.append(f"the ToolContext must be the first parameter, not {p.name!r}")
    if parameters and parameters[0].name == "self":
        faults.append("it is a method without its object; make the tool of the bound method")
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        faults.append("it yields; a tool returns one result")
    return faults


def _schema_reader(name: str, schema: Mapping[str, Any]) -> Read:
    """Build the check of a raw JSON schema. Raises ConfigError if it is not a schema of an object."""
    try:
        check = checker(schema)
    except UnusableSchema as error:
        raise ConfigError(f"tool {name!r}: parameters are not a usable JSON schema: {error}") from error
    if schema.get("type", "object") != "object":
        raise ConfigError(
            f"tool {name!r}: parameters describe a {schema['type']!r}; arguments are an 'object'"
        )

    def read(text: str) -> dict[str, Any]:
        try:
            value = from_json(text)
        except (TypeError, ValueError) as error:  # TypeError: text without a UTF-8 form
            raise BadArguments(f"the arguments are not one complete JSON object ({error})") from error
        if not isinstance(value, dict):
            raise BadArguments("the arguments are not one complete JSON object (Input should be an object)")
        if faults := listed(check(value)):
            raise BadArguments(faults)
        return value

    return read
