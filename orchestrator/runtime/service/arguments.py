"""Check the options of agents and runs: each error says which value was given and which is required.

All facades use this module, so that the same argument is checked alike. All arguments of an agent are checked before
anything is built, so that a mistake is not reported from inside the library or during a run. Only types are checked
here; other constraints are checked by the classes of the arguments. A synchronous `complete` is recognized by its
code, because calling it would cost money; one that returns another's coroutine needs the annotation `->
Awaitable[Response]`. An iterator is not checked, because reading it would consume it.
"""

from __future__ import annotations

import inspect
import math
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from os import PathLike
from pathlib import PurePath
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias, TypeGuard, get_args

import orjson

from orchestrator.argument_names import ELSEWHERE, refuse_unknown
from orchestrator.errors import ConfigError
from orchestrator.journal.address import SCHEMES
from orchestrator.kernel.graph import Graph
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.plain import plain_json
from orchestrator.tools.spec import ToolSpec

Fault: TypeAlias = str | None

LONGEST_ID = 256
"""Maximum characters of the id of a run or a conversation. Ids of child runs are a few characters longer."""


def check_agent(given: Mapping[str, Any], kind: type[Any], **own: Callable[[object], Fault]) -> None:
    """Check the arguments of a facade by name; `kind` is the class of its limits, `own` are its additional checks.

    Names without a check are ignored. Raises ConfigError that lists all arguments of a wrong type.
    """
    found = [look(given[name]) for name, look in {**own, **_AGENT}.items() if name in given]
    _refuse([*found, _limits(given["limits"], kind)])


def check_runtime(given: Mapping[str, Any]) -> None:
    """Check the arguments of a Runtime by name. Raises ConfigError that lists all arguments of a wrong type."""
    _refuse([look(given[name]) for name, look in _RUNTIME.items()])
    if given["evict_after"] and not getattr(given["journal"], "shared", False):
        raise ConfigError(
            f"evict_after is {given['evict_after']!r}, but the journal is in memory; give a durable journal, for "
            "example journal=SqliteJournal(path), or leave evict_after out"
        )


def check_run(
    run_id: object = None,
    conversation_id: object = None,
    limits: object = None,
    deadline: object = None,
    *,
    kind: type[Any],
) -> None:
    """Check the arguments of one run; None is always valid. `kind` is the class of its limits. Raises ConfigError."""
    if run_id is not None:
        check_run_id(run_id)
    if conversation_id is not None:
        _refuse([_id("conversation_id", conversation_id)])
    if limits is not None or deadline is not None:
        fault = None
        if deadline is not None and not (
            isinstance(deadline, int | float) and not isinstance(deadline, bool) and math.isfinite(deadline)
        ):
            fault = f"deadline is {_shown(deadline)}; give the seconds from now as a number"
        _refuse([_limits(limits, kind), fault])


def check_run_id(run_id: object, name: str = "run_id") -> None:
    """Check the id of a new run: routes, links and command lines must be able to name it. Raises ConfigError."""
    fault = _id(name, run_id)
    text = str(run_id)
    if not fault and ("/" in text or text in (".", "..") or text != text.strip() or text.startswith("-")):
        fault = (
            f"{name} is {_shown(run_id)}, which no route or command line can name; give text without a slash, "
            "without blanks around it, and without a dash first; '.' and '..' are taken"
        )
    _refuse([fault])


IfExists: TypeAlias = Literal["raise", "resume", "return"]
"""The handling of a run that exists: `raise` RunExists; `resume` it, and read an ended one; `return` an ended one, and
RunExists for one that has not. With the last two, a run that is active in this process is awaited."""


def check_if_exists(if_exists: object, run_id: object) -> None:
    """Check the handling of a run that exists. Raises ConfigError."""
    words = get_args(IfExists)
    if if_exists not in words:
        _refuse([f"if_exists is {_shown(if_exists)}; possible: {', '.join(map(repr, words))}"])
    if if_exists != "raise" and run_id is None:
        _refuse([f"if_exists is {if_exists!r}, which is about an id: give run_id too"])


def check_model(model: object) -> None:
    """Check that an object is a model. Raises ConfigError."""
    _refuse([_model(model)])


def check_concurrent(most: object) -> None:
    """Check a maximum number of concurrent runs. Raises ConfigError."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        _refuse([f"max_concurrent is {most!r}; it must be a whole number, 0 (all at once) or more"])


def checked_tenant(tenant: object) -> str:
    """Return the tenant of a run; "" for none. Raises ConfigError."""
    if tenant != "":
        _refuse([_id("tenant", tenant)])
    return str(tenant)


def _refuse(found: Iterable[Fault]) -> None:
    if faults := [fault for fault in found if fault]:
        raise ConfigError("; ".join(faults))


# ---- of a run ----


def _id(name: str, value: object) -> Fault:
    if isinstance(value, str) and 1 <= len(value) <= LONGEST_ID and value.isprintable():
        return None
    told = (
        f"{len(value)} characters long"
        if isinstance(value, str) and len(value) > LONGEST_ID
        else _shown(value)
    )
    return f"{name} is {told}; give text of 1 to {LONGEST_ID} printable characters, without line breaks"


def _limits(value: object, kind: type[Any]) -> Fault:
    if value is None or isinstance(value, kind):
        return None
    first = fields(kind)[0]
    pairs = value.items() if isinstance(value, Mapping) else ()
    named = ", ".join(f"{name}={_shown(one)}" for name, one in pairs if isinstance(name, str))
    meant = named or f"{first.name}={first.default}"
    return f"limits is {_shown(value)}; give {kind.__name__}({meant})"


# ---- of an agent ----


def _model(value: object, name: str = "model") -> Fault:
    complete = getattr(value, "complete", None)
    if inspect.isclass(value):
        return f"{name} is {_shown(value)}; give an instance of it"
    if not callable(complete):
        if callable(value):
            return f"{name} is {_shown(value)}; wrap it: FunctionLLM({_name(value)})"
        return f"{name} must have `async complete(request)`; {type(value).__name__} does not"
    function = getattr(complete, "__func__", complete)
    plain = inspect.isfunction(function) and not inspect.iscoroutinefunction(function)
    gives = str(function.__annotations__.get("return", "")) if plain else ""
    if plain and not any(kind in gives for kind in ("Awaitable", "Coroutine", "Future", "Task")):
        return f"complete of {type(value).__name__} is not async; write `async def complete(self, request)`"
    return None


def _sub_model(value: object) -> Fault:
    return None if value is None else _model(value, "sub_model")


def _tools(value: object) -> Fault:
    if not _has(value, "offers", "find", "execute_all"):
        if isinstance(value, ToolSpec) or (callable(value) and not isinstance(value, Iterable)):
            return f"tools is {_shown(value)}; give a list: tools=[{_name(value)}]"
        if not _is_list(value):
            return f"tools is {_shown(value)}; give a list of functions"
    return None


def _retry(value: object) -> Fault:
    if value is None or isinstance(value, RetryPolicy):
        return None
    attempts = value if isinstance(value, int) and not isinstance(value, bool) else 4
    return f"retry is {_shown(value)}; give RetryPolicy(attempts={attempts})"


def _journal(value: object) -> Fault:
    if value is None or (not inspect.isclass(value) and _has(value, "backend", "create", "append", "load")):
        return None
    if isinstance(value, str) and value.startswith(SCHEMES):
        return (
            "journal is the address of a database; give PostgresJournal(address)"  # which may hold a password
        )
    if isinstance(value, str | PurePath):
        return f"journal is {_shown(value)}; give SqliteJournal({str(value)!r})"
    return f"journal is {_shown(value)}; give a journal, for example SqliteJournal(path)"


def _object(name: str, methods: Iterable[str], how: str = "") -> Callable[[object], Fault]:
    names = tuple(methods)

    def look(value: object) -> Fault:
        if value is None or (not inspect.isclass(value) and _has(value, *names)):
            return None
        return f"{name} is {_shown(value)}; give an object with {how}{', '.join(names)}"

    return look


def _observers(value: object) -> Fault:
    if value is None:
        return None
    if not _is_list(value):
        example = "give a list" + (
            f": observers=[{_name(value)}]" if _has(value, "observe") else " of observers"
        )
        return f"observers is {_shown(value)}; {example}"
    items = () if isinstance(value, Iterator) else value
    return next((fault for item in items if (fault := _observer(item))), None)


def _observer(value: object) -> Fault:
    if inspect.isclass(value):
        return f"observers has {_shown(value)}; give an instance: {_name(value)}()"
    observe = getattr(value, "observe", None)
    if not callable(observe):
        return f"observers has {_shown(value)}; give an object with `observe(fact)`"
    if inspect.iscoroutinefunction(observe):
        return f"observe of {type(value).__name__} is async, but it is not awaited; make it a plain function"
    return None


def _ask(value: object) -> Fault:
    called = value if inspect.isroutine(value) else getattr(type(value), "__call__", None)  # noqa: B004 - the method
    if value is None or inspect.iscoroutinefunction(called):
        return None
    return f"ask is {_shown(value)}; give an async function of the question, or leave it out"


def _hooks(value: object) -> Fault:
    if _is_list(value):
        return None
    return f"hooks is {_shown(value)}; give a list: hooks=[{_name(value)}]"


def _graph(value: object) -> Fault:
    return (
        None if isinstance(value, Graph) else f"graph is {_shown(value)}; give a Graph, for example LLM_LOOP"
    )


def _instructions(value: object) -> Fault:
    if value is None or isinstance(value, str) or callable(value):
        return None
    return f"instructions is {_shown(value)}; give text or a function of the run"


def _function(name: str, example: str) -> Callable[[object], Fault]:
    def look(value: object) -> Fault:
        return None if value is None or callable(value) else f"{name} is {_shown(value)}; give {example}"

    return look


def _path(name: str) -> Callable[[object], Fault]:
    def look(value: object) -> Fault:
        good = isinstance(value, PathLike) or (isinstance(value, str) and bool(value))
        return None if good else f"{name} is {_shown(value)}; give the path of a directory"

    return look


def _named(name: str) -> Callable[[object], Fault]:
    def look(value: object) -> Fault:
        good = value is None or isinstance(value, Mapping)
        return None if good else f"{name} is {_shown(value)}; give a dict"

    return look


def _migrations(value: object) -> Fault:
    if not _is_list(value):
        return f"migrations is {_shown(value)}; give a list of Migration"
    wrong = () if isinstance(value, Iterator) else [one for one in value if not _has(one, "made", "migrate")]
    return f"migrations has {_shown(wrong[0])}; give a Migration" if wrong else None


def _runtime(value: object) -> Fault:
    if value is None or (not inspect.isclass(value) and _has(value, *_RUNTIME)):
        return None
    if _journal(value) is None:
        return f"runtime is {_shown(value)}; give Runtime(journal=...), or journal= in place of runtime="
    return f"runtime is {_shown(value)}; give a Runtime, for example Runtime(journal=SqliteJournal(path))"


def _seconds(name: str) -> Callable[[object], Fault]:
    def look(value: object) -> Fault:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and math.isfinite(value) and value >= 0:  # type: ignore[arg-type, operator]
            return None
        return f"{name} is {_shown(value)}; give a number of seconds, 0 or more (0: never)"

    return look


_RUNTIME: Mapping[str, Callable[[object], Fault]] = {
    "journal": _journal,
    "observers": _observers,
    "clock": _object("clock", ("time", "monotonic", "sleep", "call_later")),
    "migrations": _migrations,
    "price": _function("price", "price(model, tokens)"),
    "evict_after": _seconds("evict_after"),
}
"""Argument of a Runtime -> its check."""

_AGENT: Mapping[str, Callable[[object], Fault]] = {
    "model": _model,
    "sub_model": _sub_model,
    "project": _path("project"),
    "root": _path("root"),
    "tools": _tools,
    "retry": _retry,
    "runtime": _runtime,
    "journal": _journal,
    "memory": _object("memory", ("prepare", "store", "store_failure", "compact"), "async "),
    "observers": _observers,
    "hooks": _hooks,
    "graph": _graph,
    "instructions": _instructions,
    "ask": _ask,
    "stopping": _object("stopping", ("should_stop", "on_iteration_complete")),
    "compressor": _object("compressor", ("compress",)),
    "nested": _object("nested", ("should_orchestrate", "get_nested_config")),
    "repl": _function("repl", "a function that makes the REPL of a run"),
    "on_step": _function("on_step", "a function of one StepFact"),
    "params": _named("params"),
    "launch": _named("launch"),
}
"""Argument of a facade -> its check. `output_type` is checked by its own module, `deps` may be any object."""

plans = _object("planner", ("extract", "plan", "reachable"), "async ")
"""Check of approval's planner; a pipeline and a ralph loop have other planners."""


def _is_list(value: object) -> TypeGuard[Iterable[object]]:
    """Return whether a value is a collection of items. A text and a dict do not count."""
    return (
        isinstance(value, Iterable)
        and not isinstance(value, str | bytes | Mapping)
        and not inspect.isclass(value)
    )


def _has(value: object, *names: str) -> bool:
    return all(hasattr(value, name) for name in names)


def _name(value: object) -> str:
    return str(getattr(value, "__name__", None) or "it")


def _shown(value: object) -> str:
    """Return a value as text for the person who wrote it."""
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    if inspect.isroutine(value) and hasattr(value, "__name__"):  # a partial is a routine since Python 3.14
        return f"the function {_name(value)}"
    if isinstance(value, str | bytes | int | float | list | tuple | dict | set | PurePath | None):
        text = repr(value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


_SHOWN = 60


# ---- the data of a host about a run ----

# Metadata and tags are bounded, because every listing of runs can return the tags, and each process that resumes a
# run reads both.
METADATA_BYTES: Final = 16_384
"""Maximum size of metadata as JSON."""
MOST_TAGS: Final = 32
LONGEST_TAG: Final = 256
"""Maximum characters of the name of a tag, and of its value."""
LONGEST_NAME: Final = 100
"""Maximum characters of the name of an agent, and of its version."""
SHARED: Final = ("metadata", "tags")
"""Data that child runs have from their parent; the name and version of an agent are its own."""
OF_RUN: Final = ("run_id", "if_exists", "conversation_id", "limits", "deadline")
"""Arguments of a run of each machine."""
OPTIONS: Final = "options"
"""What a run has in place of its agent's: see `runtime.llm_loop.run_options`."""
KEYS: Final = ("agent", "agent_version", "currency", *SHARED, OPTIONS)
"""Members of the `created` record that a host gives."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.:+-]{{0,{LONGEST_NAME - 1}}}")


def agent_data(name: object, version: object) -> dict[str, Any]:
    """Return the data about an agent for its runs. Raises ConfigError for an invalid name or version."""
    for what, value in (("name", name), ("version", version)):
        if value is not None and not (isinstance(value, str) and _NAME.fullmatch(value)):
            raise ConfigError(
                f"{what} is {_shortened(value)}; give 1 to {LONGEST_NAME} letters, digits and any of _ . : + -, "
                "starting with a letter or digit"
            )
    return _given(agent=name, agent_version=version)


def host_data(machine: str, options: Mapping[str, object]) -> dict[str, Any]:
    """Return the data of a host in the options of a run of a machine that has no further options.

    Raises ConfigError.
    """
    refuse_unknown(f"a run of {machine} has no option", options, (*OF_RUN, *SHARED), ELSEWHERE)
    return run_data(options.get("metadata"), options.get("tags"))


def run_data(metadata: object, tags: object) -> dict[str, Any]:
    """Return the data of a host about a run, as JSON types. Raises ConfigError for data that cannot be stored."""
    if metadata is None and tags is None:
        return {}
    checked = None if metadata is None else checked_json("metadata", metadata)
    if tags is None:
        return _given(metadata=checked)
    if not isinstance(tags, Mapping):
        raise ConfigError(
            f"tags is {_shortened(tags)}; give a dict of text to text, for example tags={{'team': 'ops'}}"
        )
    if len(tags) > MOST_TAGS:
        raise ConfigError(f"there are {len(tags)} tags; give at most {MOST_TAGS}")
    for name, value in tags.items():
        if not (_is_tag(name) and name) or not _is_tag(value):
            raise ConfigError(
                f"tag {_shortened(name)} has the value {_shortened(value)}; name and value must be printable text of "
                f"at most {LONGEST_TAG} characters"
            )
    return _given(metadata=checked, tags=dict(tags))


def stored_data(created: Mapping[str, Any], keys: tuple[str, ...] = KEYS) -> dict[str, Any]:
    """Return the data of a host in the `created` record of a run."""
    return {key: created[key] for key in keys if created.get(key) is not None}


def _given(**data: Any) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value is not None}


def checked_json(what: str, value: object) -> dict[str, Any]:
    """Return a dict as JSON types; `what` is its name. Raises ConfigError for one that cannot be stored."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{what} is {_shortened(value)}; give a dict with text keys and JSON values")
    try:
        plain: dict[str, Any] = plain_json(value)
    except ValueError as error:
        raise ConfigError(f"{what} cannot be stored as JSON: {error}; give JSON values only") from None
    size = len(orjson.dumps(plain))
    if size > METADATA_BYTES:
        raise ConfigError(
            f"{what} has {size:,} bytes as JSON; give at most {METADATA_BYTES:,}, and keep the rest elsewhere"
        )
    return plain


def _is_tag(text: object) -> bool:
    return isinstance(text, str) and len(text) <= LONGEST_TAG and text.isprintable()


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"


def new_id() -> str:
    """Return a random run id."""
    return secrets.token_hex(16)
