"""`orchestrator runs resume` and `fork`: continue a run, or begin a new one from its conversation."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import EXIT_CODES, Exit
from orchestrator.cli.launch import Launch, LoadedParts, named, rebuilt
from orchestrator.cli.load import actor_name, limits_from
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.run import ViewOptions, conducted, new_id, print_result
from orchestrator.cli.runs.phrase import moment
from orchestrator.cli.runs.request import post_resume
from orchestrator.cli.runs.run_service import refuse_other
from orchestrator.cli.runs.store import (
    OpenStore,
    at_journal,
    confirm_take_over,
    journal_file,
    owned_elsewhere,
    position_of,
)
from orchestrator.cli.spread import spread
from orchestrator.cli.trust.consent import refuse_untrusted_run
from orchestrator.errors import ConfigError, RunError, Suspended
from orchestrator.journal.address import Address
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import RunHead
from orchestrator.llm.message import Message, Response
from orchestrator.llm.message import Request as ModelRequest
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.providers.named_model import ModelChoice
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.llm_loop.run_record import loop_codec, repeated_work
from orchestrator.runtime.runs.listing import read_page
from orchestrator.runtime.runs.origin import Origin, cut
from orchestrator.runtime.runs.result import fork_tags
from orchestrator.runtime.service.arguments import SHARED, stored_data
from orchestrator.runtime.service.recovery import Recovery


@dataclass(frozen=True, slots=True)
class StoredRunToResume:
    """A stored run that is to be resumed."""

    head: RunHead
    stored: StoredRun
    show: str
    """The command that shows it."""


@dataclass(frozen=True, kw_only=True)
class RunsResumeOptions(given.ReplacementOptions, given.DisplayOptions):
    """The command line of `runs resume`."""

    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run id, or at least its first 4 characters. Without it: list the open runs.",
            show_default=False,
        ),
    ] = None
    by: given.By = None
    from_agent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Transfer the run from the agent of this name, which a program has.",
            show_default=False,
        ),
    ] = None
    take_over: given.TakeOver = False


@spread
def resume(options: RunsResumeOptions) -> int:
    """Resume a run as it was started; without RUN, list open runs.

    The list says what would happen to each of them.
    """
    if options.run is None:
        return list_open(options.journal, json=options.json)
    name = options.run

    async def work(store: OpenStore) -> StoredRunToResume | Result:
        head = await store.run(name)
        if head.status == "ended":
            return await _ended(store, head)
        return await _open(store, head)

    found = at_journal(options.journal, work)
    if isinstance(found, Result):
        if not options.json:
            say(f"run {shown(found.run_id)} has ended:")
        usage = f"{found.usage.input_tokens:,} tokens in, {found.usage.output_tokens:,} out"
        print_result(found, None if options.json else usage)
        return EXIT_CODES[found.outcome]
    if found.head.owner is not None:
        head = found.head
        paused = head.status == "parked" and head.reason == "paused" and head.lease_expires_in is None
        if paused and options.is_empty:
            return post_resume(head.run_id, options.by, options)  # its owner resumes it
        raise owned_elsewhere(head, found.show)
    confirm_take_over(found.head, take_over=options.take_over)
    run_id, owner = found.head.run_id, _owner(options, found)
    refuse_untrusted_run(found.stored.created.get("launch"), f"run {run_id}", journal_file(options.journal))
    launch, parts = rebuilt(Launch.of(found.stored.created), run_id, options)
    limits = None
    if options.limits:
        limits = limits_from(options.limits, found.stored.context.get("limits") or {})
    by = actor_name(options.by)

    async def go(agent: Agent) -> Result:
        try:
            ours = agent if owner else named(agent, found.head)
            return await ours.resume(run_id, limits=limits, by=by, from_agent=owner)
        except Suspended as error:
            raise ConfigError(f"run {run_id} is {error.reason}; `{found.show}`") from error

    view = ViewOptions(run_id, options.journal, options.log, options.json, remind=False)
    return conducted(view, launch, parts, limits, go)


def _owner(options: RunsResumeOptions, found: StoredRunToResume) -> str | None:
    """Return the agent that the run is transferred from; None for no transfer. Raises ConfigError if one is needed.

    The tools of this command line are the choice of a person, so they may differ from those of an agent without a name.
    """
    head = found.head
    if options.from_agent is not None:
        if options.from_agent != head.agent:
            raise ConfigError(
                f"run {head.run_id} {_belongs(head)}, not to {shown(options.from_agent)!r}: `{found.show}`"
            )
        return options.from_agent
    if head.agent and not found.stored.created.get("launch"):
        raise ConfigError(
            f"run {head.run_id} {_belongs(head)}, which a program has: that program resumes it, or transfer it to this "
            f"command line with --from-agent {head.agent}"
        )
    return None if head.agent else ""


def _belongs(head: RunHead) -> str:
    return f"belongs to agent {shown(head.agent)!r}" if head.agent else "belongs to an agent without a name"


# ---- stored runs ----


async def _open(store: OpenStore, head: RunHead) -> StoredRunToResume:
    """Return the stored run. Raises ConfigError for a run that no model can continue."""
    refuse_other(store, head, LLM_LOOP.name)
    stored = StoredRun.of(head.run_id, await store.journal.load(head.run_id))
    if stored.fingerprint != LLM_LOOP.fingerprint:
        migrate = store.command("migrate", "--using", "MODULE:FUNCTION", head.run_id)
        raise ConfigError(
            f"run {head.run_id} was made with another version of graph {head.graph!r} ({stored.fingerprint[:12]}, here "
            f"it is {LLM_LOOP.fingerprint[:12]}): resume it with the version that made it, or `{migrate}`"
        )
    return StoredRunToResume(head, stored, store.command("show", head.run_id))


class _Nobody:
    """Replaces the model of a run that has ended; it gets no request."""

    double = True
    model = "nobody"

    async def complete(self, request: ModelRequest) -> Response:
        raise AssertionError(f"an ended run asked its model with {len(request.messages)} messages")


async def _ended(store: OpenStore, head: RunHead) -> Result:
    """Return the result of an ended run. Raises ConfigError for a run that cannot be read here."""
    if (head.graph, head.fingerprint) != (LLM_LOOP.name, LLM_LOOP.fingerprint):
        over = position_of(head, await store.story(head))
        raise ConfigError(
            f"run {head.run_id} is over ({over}, {moment(head.updated_at)}): `{store.command('show', head.run_id)}`"
        )
    parts = LoadedParts(ModelChoice(_Nobody()))
    async with Launch().agent(parts, journal=store.journal, observers=()) as agent:
        return await agent.resume(head.run_id)


# ---- the list ----


def list_open(journal: Address | None, *, json: bool) -> int:
    """Print every open run and its resume plan. Changes nothing."""

    async def work(store: OpenStore) -> int:
        recovery = Recovery(store.journal, LLM_LOOP, loop_codec(), "nobody", repeated=repeated_work)
        found = await recovery.open_runs()
        for one in found:
            try:
                launch = Launch.of((await recovery.read(one.run_id))[0].created)
            except RunError:  # its resume plan contains the problem
                launch = Launch()
            if json:
                say_json(asdict(one) | {"model": launch.model, "tools": list(launch.tools)})
                continue
            reason = f" ({one.reason})" if one.reason else ""
            say(shown(f"{one.run_id}  {one.status}{reason} in {one.state}", 300))
            say(shown(f"    {one.will}", 600))
            if one.owner is None and one.fingerprint == LLM_LOOP.fingerprint:
                model = () if launch.model else ("--model", "SPEC")
                say(f"    {store.command('resume', one.run_id, *model)}")
        if not json:
            others = Counter(
                head.graph
                for head in (await read_page(store.journal)).runs
                if head.status != "ended" and head.graph != LLM_LOOP.name
            )
            more = "".join(
                f"; {count} of graph {shown(name)!r}, for another program" for name, count in others.items()
            )
            say(f"\n{len(found)} open; nothing was touched{more}" if found else f"no run is open{more}")
        return Exit.COMPLETED

    return at_journal(journal, work)


@dataclass(frozen=True, kw_only=True)
class ForkOptions(given.ReplacementOptions, given.DisplayOptions):
    """The command line of `runs fork`."""

    run: given.RunId
    turn: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="After this answer of the model; 0 is before the first. Default: the end."
        ),
    ] = None
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="The next message of the user.")
    ] = None
    run_id: given.NewRunId = None


@spread
def fork(options: ForkOptions) -> int:
    """Start a new run from the conversation of a run after a turn.

    RUN itself does not change.
    """
    run_id = new_id(options.run_id)

    async def work(store: OpenStore) -> tuple[RunHead, Origin]:
        head = await store.run(options.run)
        if head.graph != LLM_LOOP.name:
            raise ConfigError(
                f"run {head.run_id} belongs to graph {shown(head.graph)!r}, and only runs of {LLM_LOOP.name} are "
                f"forked; fork one of its child runs of {LLM_LOOP.name}, which `orchestrator runs show` lists"
            )
        return head, cut(head.run_id, await store.journal.load(head.run_id), options.turn)

    head, origin = at_journal(options.journal, work)
    messages = [*origin.messages, *([Message("user", options.prompt)] if options.prompt else [])]
    if origin.is_answered and not options.prompt:
        raise ConfigError(
            f"after turn {origin.turn} run {origin.stored.run_id} has its answer: say with --prompt what comes next, "
            "or fork from an earlier --turn"
        )
    created, name = origin.stored.created, f"run {origin.stored.run_id}"
    refuse_untrusted_run(created.get("launch"), name, journal_file(options.journal))
    launch = replace(
        Launch.of(created),
        forked_from={"run_id": origin.stored.run_id, "turn": origin.turn},
    )
    launch, parts = rebuilt(launch, origin.stored.run_id, options)
    limits = limits_from(options.limits, origin.stored.context.get("limits") or {})
    view = ViewOptions(run_id, options.journal, options.log, options.json)
    host = stored_data(created, SHARED)
    host["tags"] = fork_tags(host.get("tags", {}), origin.stored.run_id, origin.turn)
    return conducted(
        view, launch, parts, limits, lambda agent: named(agent, head).run(messages, run_id=run_id, **host)
    )
