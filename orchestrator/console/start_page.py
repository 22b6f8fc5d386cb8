"""The form that starts a run: with an input, with the input of a run again, or from its conversation after a turn.

A console has the journal and none of the agents, so an engine that has the agent starts the run, with the agent's own
instructions, model, tools, limits and deps. The form has what the engines publish about their agents. Its run id is
chosen when the form is displayed, so a form that is sent twice starts one run.

A run that the console writes by itself was rejected: it would have neither instructions nor limits.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from orchestrator.console.access import Actor
from orchestrator.console.pages import Console, PageFault, segment
from orchestrator.engines.engine_directory import START, EngineInfo, ask, engines
from orchestrator.errors import ConfigError, RunError, RunUnknown, StoreDown
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record, RunHead
from orchestrator.llm.json_schema import UnusableSchema
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.runtime.runs.listing import path_to_root
from orchestrator.runtime.runs.origin import REPEATED, Origin, cut, recorded_input, without_instructions
from orchestrator.runtime.runs.result import fork_tags, own_tags
from orchestrator.runtime.runs.story import Story
from orchestrator.runtime.service.arguments import checked_tenant, run_data
from orchestrator.tools.input_request import MISSING, field_value, form_fields

_LOG: Final = logging.getLogger("orchestrator.console")
_RUN_ID: Final = re.compile(r"[0-9a-f]{32}")
_HARMLESS: Final = frozenset(("pure", "idempotent", "compensable", ""))
_MESSAGE: Final = "Next message"
_PENDING: Final = 202
"""Status of an answer while the engine has not answered yet."""
_WHOLE: Final = "Input"
"""Name of the field of an input that is no object."""


class StartableAgent(NamedTuple):
    """An agent whose runs can be started here."""

    name: str
    """Its name in the engines."""
    agent: str
    """Its own name; "" if it has none."""
    graphs: frozenset[str]
    """Graphs of its runs, also of those from before it had handoffs."""
    schema: Mapping[str, Any]
    """JSON schema of its input."""
    engines: list[EngineInfo]
    """Live engines that have it, the newest first: an older one may be draining."""

    def has(self, head: RunHead) -> bool:
        """Return whether a run is one of this agent."""
        return head.agent == self.agent and head.graph in self.graphs


async def startable_agents(console: Console) -> dict[str, StartableAgent]:
    """Return the agents of the live engines whose runs can be started from elsewhere, by name. Raises StoreDown."""
    own = None if console.engine is None else console.engine.run_id
    is_shared = getattr(console.runs.journal, "shared", False)
    found: dict[str, StartableAgent] = {}
    for engine in reversed(await engines(console.runs.journal)):
        if not engine.alive or not (is_shared or engine.run_id == own):  # it reads no requests
            continue
        agents: Mapping[str, Mapping[str, Any]] = engine.about.get("agents") or {}
        for name, about in sorted(agents.items()):
            schema = about.get("input")
            if isinstance(schema, Mapping):
                graphs = frozenset(str(one.get("graph")) for one in (about, about.get("earlier") or {}))
                new = StartableAgent(name, str(about.get("agent") or ""), graphs, schema, [])
                found.setdefault(name, new).engines.append(engine)
    return found


@dataclass(frozen=True, slots=True)
class SourceRun:
    """The run that a new run starts from."""

    head: RunHead
    records: Sequence[Record]
    turn: int | None
    """The turn after which it is forked; None to run it again."""
    origin: Origin | None
    """None to run it again."""
    tenant: str

    @classmethod
    async def read(cls, console: Console, actor: Actor, run_id: str, turn: str) -> SourceRun:
        """Read the run of a form. Raises PageFault, RunUnknown, Corrupt, StoreDown."""
        head = await console.runs.head(run_id)
        why = not_forked(head) if turn else not_repeated(head)
        if why:
            raise PageFault(409, why)
        records = await console.runs.records(run_id)
        *_, root = await path_to_root(console.runs.journal, head)  # the tenant is that of the whole tree
        whole = records if root == run_id else await console.runs.records(root)
        tenant = StoredRun.of(root, whole[:1]).tenant
        if actor.tenant not in {"", tenant}:
            raise PageFault(403, "This run belongs to another tenant than you.")
        if not turn:
            return cls(head, records, None, None, tenant)
        if not (turn.isdecimal() and len(turn) < 10):  # noqa: PLR2004
            raise PageFault(400, "The turn of a fork is a whole number, 0 or more.")
        try:
            origin = cut(run_id, records, int(turn))
        except ConfigError as error:
            raise PageFault(409, str(error)) from error
        return cls(head, records, origin.turn, origin, tenant)

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """Its metadata, which the factory of deps reads."""
        return self.records[0].body.get("metadata")

    @property
    def tags(self) -> dict[str, str]:
        """Its tags, without those of a fork."""
        return own_tags(self.head.tags)

    @property
    def options(self) -> list[str]:
        """Names of what the run had in place of its agent's."""
        return sorted(self.records[0].body.get("options") or {})

    @property
    def effects(self) -> list[str]:
        """Names of the called tools whose effects cannot be taken back."""
        calls = Story.of(self.head.run_id, self.records).calls.values()
        return sorted({call.tool for call in calls if call.effect not in _HARMLESS})

    def value(self, message: str) -> Any:
        """Return the input of the new run, with the next message of a fork. Raises ConfigError."""
        if self.origin is None:
            return recorded_input(self.head.run_id, self.records)
        messages = [*self.origin.messages, *([Message("user", message)] if message.strip() else [])]
        return without_instructions([one.to_openai() for one in messages])


def not_repeated(head: RunHead) -> str:
    """Return why a run cannot be run again here, as a sentence; "" if it can."""
    if head.status != "ended":
        return "This run has not ended: it can be run again after its end."
    if head.graph not in REPEATED:
        return (
            f"A run of {head.graph} starts in its own program, which has its files or its Python context: its records "
            "do not have the whole input."
        )
    return ""


def not_forked(head: RunHead) -> str:
    """Return why a run cannot be forked here, as a sentence; "" if it can."""
    if head.status != "ended":
        return "This run has not ended: it can be forked after its end."
    if head.graph != LLM_LOOP.name:
        return (
            f"Only runs of {LLM_LOOP.name} are forked, and this one belongs to {head.graph}: fork one of its child "
            f"runs of {LLM_LOOP.name}, if it has any."
        )
    return ""


class FormInput(NamedTuple):
    """A field of the input."""

    name: str
    about: str
    is_text: bool
    """Whether the person writes text; else JSON."""
    is_required: bool


@dataclass(slots=True)
class StartForm:
    """What a person filled in, and what is wrong with it."""

    texts: Mapping[str, str]
    faults: dict[str, str] = field(default_factory=dict)
    """Name of a field -> sentence."""

    def text(self, name: str) -> str:
        """Return the text of a field."""
        return self.texts.get(name, "")

    def value(self, schema: Mapping[str, Any]) -> Any:
        """Return the input; a wrong field has a fault then."""
        whole = _as_object(schema)
        found: dict[str, Any] = {}
        for one in form_fields(whole):
            try:
                value = field_value(whole, one.name, self.text(f"input {one.name}"))
            except UnusableSchema as error:
                self.faults[f"input {one.name}"] = f"The schema of this field cannot be used: {error}."
            except ValueError as error:
                self.faults[f"input {one.name}"] = str(error)
            else:
                if value is not MISSING:
                    found[one.name] = value
        return found if whole is schema else found.get(_name(schema))

    def tags(self) -> dict[str, str]:
        """Return the tags, of lines `name=value`."""
        found: dict[str, str] = {}
        for line in filter(str.strip, self.text("tags").split("\n")):
            name, equals, value = line.partition("=")
            if not (equals and name.strip()) or name.strip() in found:
                self.faults["tags"] = (
                    f"Write each tag once, on a line of its own, as name=value; not {line.strip()!r}."
                )
                return {}
            found[name.strip()] = value.strip()
        self._check("tags", lambda: run_data(None, found))
        return found

    def metadata(self) -> Mapping[str, Any] | None:
        """Return the metadata; None if the field is empty."""
        if not self.text("metadata").strip():
            return None
        try:
            found = json.loads(self.text("metadata"))
        except (ValueError, RecursionError) as error:
            self.faults["metadata"] = f"This is not JSON: {error}."
            return None
        self._check("metadata", lambda: run_data(found, None))
        return found  # type: ignore[no-any-return]  # run_data refuses what is no object

    def tenant(self) -> str:
        """Return the tenant."""
        name = self.text("tenant").strip()
        self._check("tenant", lambda: checked_tenant(name))
        return name

    def _check(self, name: str, check: Any) -> None:
        try:
            check()
        except ConfigError as error:
            self.faults[name] = str(error)


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema.get("title") or _WHOLE)


def _as_object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of an object with a field for each part of an input."""
    if schema.get("type") == "object" and schema.get("properties"):
        return schema
    name = _name(schema)
    return {"type": "object", "properties": {name: schema}, "required": [name]}


def inputs(schema: Mapping[str, Any]) -> list[FormInput]:
    """Return the fields of an input."""
    return [
        FormInput(one.name, one.about, one.kind == "string", one.is_required)
        for one in form_fields(_as_object(schema))
    ]


async def form(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the form, for the agent, the run and the turn of its address. Raises PageFault, RunError."""
    if not actor.may_operate:
        raise PageFault(403, "This console is read-only for you: start it with --operate.")
    given = request.query_params
    source = (
        await SourceRun.read(console, actor, given["run"], given.get("turn", ""))
        if given.get("run")
        else None
    )
    lines = "" if source is None else "\n".join(f"{name}={value}" for name, value in source.tags.items())
    return await _page(console, request, actor, source, given.get("agent", ""), StartForm({"tags": lines}))


async def _page(  # noqa: PLR0917 - the parts of the form
    console: Console,
    request: Request,
    actor: Actor,
    source: SourceRun | None,
    name: str,
    filled: StartForm,
    status: int = 200,
    refused: str = "",
) -> Response:
    agents = await startable_agents(console)
    if source is not None:
        agents = {key: one for key, one in agents.items() if one.has(source.head)}
    # The page of an agent has its own name, which an engine may not use.
    named = [one for one in agents.values() if not name or one.agent == name]
    chosen = agents.get(name) or (named[0] if len(named) == 1 else None)
    return await console.page(
        request,
        actor,
        "start",
        status=status,
        agents=list(agents.values()),
        asked=name,
        chosen=chosen,
        fields=inputs(chosen.schema) if chosen and source is None else [],
        source=source,
        message=_MESSAGE,
        filled=filled,
        refused=refused,
        is_pending=status == _PENDING,
        run_id=filled.text("run_id") or secrets.token_hex(16),
    )


async def post(console: Console, request: Request, actor: Actor, form: Mapping[str, list[str]]) -> Response:
    """Start a run, once for each displayed form. Raises PageFault, RunError."""
    texts = {name: values[0] for name, values in form.items()}
    filled, name, run_id = StartForm(texts), texts.get("agent", ""), texts.get("run_id", "")
    if not _RUN_ID.fullmatch(run_id):
        raise PageFault(400, "The form does not have the id of the new run. Open the page again.")
    started = RedirectResponse(f"{request.scope.get('root_path', '')}/runs/{segment(run_id)}", 303)
    try:
        await console.runs.head(run_id)
    except RunUnknown:
        pass
    else:
        return started  # the form was sent twice
    source = None
    if texts.get("run"):
        source = await SourceRun.read(console, actor, texts["run"], texts.get("turn", ""))
    chosen = (await startable_agents(console)).get(name)
    if chosen is None or (source is not None and not chosen.has(source.head)):
        return await _page(console, request, actor, source, name, filled, 409)
    order = _order(filled, actor, source, chosen.schema)
    if filled.faults:
        return await _page(console, request, actor, source, name, filled, 422)
    refused = await _start(console, chosen, {**order, "run_id": run_id}, actor)
    _LOG.info(
        "console: run %s of agent %s was requested by %s%s",
        run_id,
        name,
        actor.name,
        " and refused" if refused else "",
    )
    if refused is None:
        waits = (
            f"Engine {chosen.engines[0].name} has not answered. It starts run {run_id} when it reads the request, "
            "which stays in the journal; sending this form again starts no second run."
        )
        return await _page(console, request, actor, source, name, filled, _PENDING, waits)
    if refused:
        return await _page(console, request, actor, source, name, filled, 409, refused)
    return started


def _order(
    filled: StartForm, actor: Actor, source: SourceRun | None, schema: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of the new run; what is wrong with them is in the form."""
    tags = filled.tags()
    if source is None:
        value, metadata, tenant = filled.value(schema), filled.metadata(), actor.tenant or filled.tenant()
    else:
        message = filled.text(_MESSAGE)
        if source.origin is not None and source.origin.is_answered and not message.strip():
            filled.faults[_MESSAGE] = (
                f"After turn {source.turn} the run has its answer: write what comes next, or fork from an earlier turn."
            )
        value, metadata, tenant = source.value(message), source.metadata, source.tenant
        tags = fork_tags(tags, source.head.run_id, source.turn or 0)
    made = {"value": value, "metadata": metadata, "tags": tags or None}
    return {key: one for key, one in made.items() if one is not None} | ({"tenant": tenant} if tenant else {})


async def _start(
    console: Console, chosen: StartableAgent, order: Mapping[str, Any], actor: Actor
) -> str | None:
    """Start the run in an engine. Return "" then, or why all of them refused it; None if one has not answered yet.

    Raises StoreDown.
    """
    refused = ""
    for engine in chosen.engines:
        if console.engine is not None and engine.run_id == console.engine.run_id:
            try:
                await console.engine.deposit(**{"value": None, **order}, agent=chosen.name, by=actor.name)
            except StoreDown:
                raise
            except (ConfigError, RunError) as error:
                refused = str(error)
            else:
                return ""
            continue
        answer = await ask(console.runs.journal, engine, START, {**order, "agent": chosen.name}, actor.name)
        if answer is None:
            return None
        if not answer.get("refused"):
            return ""
        refused = str(answer["refused"])
    return refused
