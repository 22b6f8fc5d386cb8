"""Options of one run in place of its agent's: checked before the run, stored with it, and restored when it is resumed.

`RunArguments` are the options as a caller writes them, `RunSettings` the checked ones. The `created` record has under
`options` only what differs from the agent: names of tools, parameters, the schema of the output, and that the run has
live deps. Instructions are part of the messages. Deps cannot be stored: the agent's factory builds them again from the
metadata of the run, or the run is parked as `deps_required`.

A restored output type is the agent's own if that has the same schema, else the schema: the answer is plain JSON then.
The name of a Python type is not stored, because a journal must not choose which code is imported.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, Literal, TypeAlias, TypedDict, cast, get_args

from orchestrator import around
from orchestrator.argument_names import ELSEWHERE, refuse_unknown
from orchestrator.errors import ConfigError, RunError
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.cancellation import TimeLimitPassed, called, limited
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Message
from orchestrator.llm.port import LLM, Clock, check_params, model_name
from orchestrator.llm.structured_output import OutputSpec
from orchestrator.machines.plain import plain_json
from orchestrator.providers.model_guard import refuse_real
from orchestrator.runtime.service.arguments import OF_RUN, OPTIONS, check_model, checked_json, run_data
from orchestrator.tools.result import explain
from orchestrator.tools.spec import DepsT, RunContext, ToolSpec
from orchestrator_callbacks.llm_loop.deps import AgentRun, LoopDeps, ToolProvider

FUNCTION_SECONDS: Final = 30.0
"""Time limit of a deps factory, and of a function that gives instructions."""

Start: TypeAlias = Literal["last", "first"]
"""Which agent of a team begins a run: the one that had the conversation last, or the one that is run."""
RunFunction: TypeAlias = Callable[[RunContext], Any]
"""A function of a run, sync (called in a thread) or async."""


class RunArguments(TypedDict, Generic[DepsT], total=False):
    """Options of one run, for `run`, `run_sync`, `stream`, `deposit`, and `submit` of an engine."""

    deps: DepsT | None
    """Live handles for the tools. Never stored."""
    metadata: Mapping[str, Any] | None
    """JSON data of the host, stored with the run and its child runs, never logged; at most 16 kB."""
    tags: Mapping[str, str] | None
    """Text by name, likewise; at most 32."""
    model: LLM | str | None
    """Model instead of the agent's. The name of a vendor's model, as "openai:gpt-5-mini", is stored, and a resume makes
    the model again. An object, or a name that imports code, is needed again: `resume(run_id, model=…)`."""
    instructions: str | RunFunction | None
    """System message of the run instead of the agent's: text, or a function that returns it."""
    params: Mapping[str, Any] | None
    """Parameters of the model requests, in addition to the agent's; JSON."""
    output_type: object
    """Type of the answer instead of the agent's; `str` means free text."""
    tools: Iterable[str] | None
    """Names of the agent's tools that the run may use; all of them by default."""
    start: Start
    """Which agent of a team gets the message: the `last` one of the conversation (the default), or the `first`."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Checked options of one run."""

    data: Mapping[str, Any] = field(default_factory=dict)
    """Members of the `created` record."""
    deps: Any = None
    instructions: str | RunFunction | None = None
    output: OutputSpec | None = None
    model: LLM | None = None
    start: Start = "last"

    @property
    def stored(self) -> Mapping[str, Any]:
        """The options that the record has."""
        found: Mapping[str, Any] = self.data.get(OPTIONS, {})
        return found


NO_OPTIONS: Final = RunSettings()


def run_options(
    own: LoopDeps,
    *,
    deps: Any = None,
    metadata: object = None,
    tags: object = None,
    instructions: object = None,
    params: object = None,
    output_type: object = None,
    tools: object = None,
    model: object = None,
    start: object = "last",
    **unknown: object,
) -> RunSettings:
    """Check the options of one run of an agent with these handles; None is the agent's own. Raises ConfigError."""
    if unknown:
        refuse_unknown("a run has no option", unknown, (*OF_RUN, *RunArguments.__annotations__), ELSEWHERE)
    stored: dict[str, Any] = {}
    output = None
    if tools is not None:
        stored["tools"] = _tool_names(own.tools, tools)
    llm = None
    if model is not None:
        llm = checked_model(model)
        stored["model"] = model if _is_portable(model) else {"live": model_name(llm)}
        check_params(llm, own.params)
    if params is not None:
        stored["params"] = checked_json("params", params)
        check_params(llm or own.llm, stored["params"])
    if output_type is not None:
        output = None if output_type is str else OutputSpec.of(output_type)
        stored["output_type"] = None if output is None else plain_json(output.schema)
        _restored_output(own.output, stored["output_type"])  # a resumed run checks its answers with it
    if deps is not None:
        stored["deps"] = True
    if not (instructions is None or isinstance(instructions, str) or callable(instructions)):
        raise ConfigError(f"instructions is {instructions!r}; give text or a function of the run")
    if start not in get_args(Start):
        raise ConfigError(f"start is {start!r}; possible: 'last', 'first'")
    data = run_data(metadata, tags) | ({OPTIONS: stored} if stored else {})
    return RunSettings(data, deps, instructions, output, llm, cast("Start", start))


def checked_model(model: object) -> LLM:
    """Return a model, or the one that a text names. Raises ConfigError."""
    found: object = around.model_of(model).llm if isinstance(model, str) else model
    check_model(found)
    refuse_real(found)
    return cast("LLM", found)


def run_deps(
    own: LoopDeps, stored: Mapping[str, Any], output: OutputSpec | None = None, model: LLM | None = None
) -> LoopDeps:
    """Return the handles of a run with these stored options; the agent's own if there are none.

    `output` is the type of the output and `model` the model if they are known. Tools that the agent no longer has are
    left out. A live model that is not known is the agent's: the run is only read, because a resume needs the model.
    """
    changes: dict[str, Any] = {}
    if "model" in stored or model is not None:
        named = stored.get("model")
        llm = model or (checked_model(named) if _is_portable(named) else own.llm)
        changes |= {"llm": llm, "model": model_name(llm)}
    if "tools" in stored:
        changes["tools"] = own.tools.select(stored["tools"])  # type: ignore[attr-defined]  # checked at the start
    if "params" in stored:
        changes["params"] = {**own.params, **stored["params"]}
    if "output_type" in stored:
        changes["output"] = output or _restored_output(own.output, stored["output_type"])
    return replace(own, **changes) if changes else own


def _is_portable(model: object) -> bool:
    """Return whether a model is a name that a resume may follow: a journal must not choose which code is imported."""
    return isinstance(model, str) and model.partition(":")[0] not in {"python", "replay"}


def _is_live(options: Mapping[str, Any]) -> bool:
    """Return whether a run has a live model, which no name can make again."""
    return "model" in options and not _is_portable(options["model"])


class DepsSource:
    """Where the deps of an agent's runs come from: the same object for all, or a factory (any callable)."""

    def __init__(self, deps: Any) -> None:
        self.factory: RunFunction | None = deps if callable(deps) else None
        self.host = None if callable(deps) else deps
        """The deps of all runs without deps of their own, if there is no factory."""
        self._given: dict[str, Any] = {}
        self.models: dict[str, LLM] = {}
        """Run -> the live model that a resume was given."""

    def require(self, tools: Iterable[ToolSpec]) -> None:
        """Raise ConfigError if a tool reads deps and there are none: the model would read its failure."""
        if self.host is None and self.factory is None:
            for spec in tools:
                if spec.deps_type is not None:
                    named = getattr(spec.deps_type, "__name__", str(spec.deps_type))
                    raise ConfigError(
                        f"tool {spec.name!r} reads deps ({named}), and neither the agent nor the run has any; give one "
                        "of them deps="
                    )

    @contextlib.contextmanager
    def given(self, run_id: str, deps: Any, model: LLM | None = None) -> Iterator[None]:
        """Use live deps and a live model for a run that is resumed in this block; None for none."""
        before = dict(self._given), dict(self.models)
        if deps is not None:
            self._given[run_id] = deps
        if model is not None:
            self.models[run_id] = model
        try:
            yield
        finally:
            for now, was in zip((self._given, self.models), before, strict=True):
                if run_id in was:
                    now[run_id] = was[run_id]
                else:
                    now.pop(run_id, None)

    def lacks(self, stored: StoredRun) -> bool:
        """Return whether a stored run needs deps or a model that cannot be made here."""
        options = stored.created.get(OPTIONS) or {}
        needs_deps = bool(options.get("deps")) and self.factory is None and stored.run_id not in self._given
        return needs_deps or (_is_live(options) and stored.run_id not in self.models)

    def keeps(self, run: AgentRun) -> bool:
        """Return whether a run has deps or a model that cannot be made again when it is resumed."""
        options = (run.data or {}).get(OPTIONS, {})
        return (bool(options.get("deps")) and self.factory is None) or _is_live(options)

    async def restore(self, run: AgentRun) -> None:
        """Give a restored run its deps. Raises RunError if the factory fails or is slow."""
        deps = self._given.get(run.run_id)
        if deps is None and self.factory is not None:
            context = RunContext(run.run_id, run.metadata, run.tags)
            deps = await _returned(self.factory, context, "the deps factory", run.deps.clock)
        if deps is not None:
            run.deps = replace(run.deps, host=deps)


async def prepare_run(
    own: LoopDeps,
    run_id: str,
    options: RunSettings,
    instructions: str | RunFunction | None,
    factory: RunFunction | None,
) -> tuple[LoopDeps, str | None]:
    """Return the handles of a new run, with its deps, and the text of its instructions.

    `instructions` are the agent's. Raises RunError if a function of the host fails or is slow.
    """
    said = instructions if options.instructions is None else options.instructions
    if options is NO_OPTIONS and factory is None and not callable(said):
        return own, said
    context = RunContext(run_id, options.data.get("metadata", {}), options.data.get("tags", {}))
    handles = run_deps(own, options.stored, options.output, options.model)
    if options.deps is not None:
        handles = replace(handles, host=options.deps)
    elif factory is not None:
        deps = await _returned(factory, context, "the deps factory", own.clock)
        handles = replace(handles, host=deps)
    if said is None or isinstance(said, str):
        return handles, said
    context = replace(context, deps=handles.host)
    text = await _returned(said, context, "the instructions function", own.clock)
    if text is None or isinstance(text, str):
        return handles, text
    raise RunError(
        f"the instructions function of run {run_id!r} returned {type(text).__name__}; return text or None"
    )


async def _returned(function: RunFunction, context: RunContext, what: str, clock: Clock) -> Any:
    try:
        return await limited(partial(called, function, context, what), FUNCTION_SECONDS, clock)
    except TimeLimitPassed:
        raise RunError(
            f"{what} of run {context.run_id!r} did not return within {FUNCTION_SECONDS:g} s; make it faster, or do "
            "the slow part in a tool"
        ) from None
    except Exception as error:
        raise RunError(f"{what} of run {context.run_id!r} failed: {explain(error)}") from error


def _tool_names(own: ToolProvider, names: object) -> list[str]:
    """Return names of tools in the order of the agent's tools. Raises ConfigError for an unknown one."""
    if isinstance(names, str | Mapping) or not isinstance(names, Iterable):
        raise ConfigError(f"tools is {names!r}; give names of the agent's tools: tools=['search']")
    if not hasattr(own, "select"):
        raise ConfigError(f"{type(own).__name__} has no `select(names)`; leave out tools=")
    known, chosen = [spec.name for spec in own.offers], list(names)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        have = ", ".join(known) or "none"
        raise ConfigError(f"the agent has no tool {unknown[0]!r}; its tools: {have}")
    return [name for name in known if name in chosen]


def _restored_output(own: OutputSpec | None, schema: Mapping[str, Any] | None) -> OutputSpec | None:
    if schema is None:
        return None
    return own if own is not None and plain_json(own.schema) == schema else OutputSpec.of(schema)


Prompt: TypeAlias = str | Message | Sequence[Message | Mapping[str, Any]]
"""Text of the user, one message, or a conversation as messages or in OpenAI chat form."""


class Conversations:
    """Cache of the last `kept` conversations by id, as of their last run; the journal has all conversations."""

    def __init__(self, kept: int = 1_000) -> None:
        self._kept = kept
        self._said: OrderedDict[str, tuple[str, tuple[Message, ...]]] = OrderedDict()

    def history(self, conversation_id: str, run_id: str | None) -> tuple[Message, ...] | None:
        """Return the cached messages up to a run, or None. Without a run id, return the cached messages."""
        known = self._said.get(conversation_id)
        if known is None or run_id not in (None, known[0]):
            return None
        return known[1]

    async def before(
        self,
        conversation_id: str | None,
        journal: Journal,
        read: Callable[[str], Awaitable[Sequence[Message]]],
    ) -> Sequence[Message]:
        """Return the earlier messages of a conversation, from any process; `read` reads a stored run of it.

        Raises ConfigError if the conversation has an active run.
        """
        if conversation_id is None:
            return ()
        newest = await journal.newest(conversation_id)
        if newest is not None and newest.owner is not None:
            raise ConfigError(
                f"conversation {conversation_id!r} has an active run ({newest.run_id}); wait for its end"
            )
        known = self.history(conversation_id, None if newest is None else newest.run_id)
        if known is not None or newest is None:
            return known or ()
        return await read(newest.run_id)

    def keep(self, conversation_id: str | None, run_id: str, messages: Sequence[Message]) -> None:
        """Cache the conversation after a run; above `kept` the least recently used one is dropped."""
        if conversation_id is None:
            return
        self._said[conversation_id] = run_id, tuple(messages)
        self._said.move_to_end(conversation_id)
        if len(self._said) > self._kept:
            self._said.popitem(last=False)


def opening(prompt: Prompt, history: Sequence[Message], instructions: str | None) -> list[Message]:
    """Return the first messages of a run. Raises ConfigError for an invalid prompt."""
    given = _given_messages(prompt)
    if instructions is not None and history and history[0].role == "system":
        history = history[1:]  # the instructions of an earlier run
    messages = [*history, *given]
    if not messages:
        raise ConfigError("the prompt is empty; give text or at least one message")
    try:
        for message in given:
            if isinstance(message.content, str):
                message.content.encode()
    except UnicodeEncodeError:
        raise ConfigError("the prompt is not text: it contains half a character (a lone surrogate)") from None
    if instructions is not None and messages[0] != (system := Message("system", instructions)):
        messages.insert(0, system)
    return messages


def _given_messages(prompt: Prompt) -> list[Message]:
    if isinstance(prompt, str | Message):
        return [Message("user", prompt) if isinstance(prompt, str) else prompt]
    if not isinstance(prompt, Sequence):
        raise ConfigError(f"the prompt must be text or messages, not {type(prompt).__name__}")
    given: list[Message] = []
    for item in prompt:
        if not isinstance(item, Message | Mapping):
            raise ConfigError(f"a message must be a Message or a mapping, not {type(item).__name__}")
        try:
            given.append(item if isinstance(item, Message) else Message.from_openai(item))
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"a message of the prompt cannot be read: {error}") from error
    return given
