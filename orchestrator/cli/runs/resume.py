"""`orchestrator runs resume`: resume a run; without one, list the resume plan of each open run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from orchestrator.cli.exit import EXIT_CODES, Exit
from orchestrator.cli.launch import Launch, LoadedParts, ModelChoice, Replacement, named, rebuilt
from orchestrator.cli.load import actor_name, limits_from
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.run import ViewOptions, conducted, print_result
from orchestrator.cli.runs.phrase import moment
from orchestrator.cli.runs.position import owned_elsewhere, position_of
from orchestrator.cli.runs.request import post_resume
from orchestrator.cli.runs.run_service import refuse_other
from orchestrator.cli.runs.store import OpenStore, at_journal, journal_file
from orchestrator.cli.runs_group import RunsResumeOptions
from orchestrator.cli.trust.consent import refuse_untrusted_run
from orchestrator.errors import ConfigError, RunError, Suspended
from orchestrator.journal.address import Address
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import RunHead
from orchestrator.llm.message import Request as ModelRequest
from orchestrator.llm.message import Response
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.codec import loop_codec, repeated_work
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.service.recovery import OpenRun, Recovery


@dataclass(frozen=True, slots=True)
class StoredRunToResume:
    """A stored run that is to be resumed."""

    head: RunHead
    stored: StoredRun
    show: str
    """The command that shows it."""


def resume_run(options: RunsResumeOptions) -> int:
    """Resume a run and return the exit code of its outcome. Raises ConfigError if that is not possible here."""
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
        return _print_ended(found, json=options.json)
    if found.head.owner is not None:
        return _refuse_owned(options, found)
    return _go_on(options, found)


def _go_on(options: RunsResumeOptions, found: StoredRunToResume) -> int:
    run_id, owner = found.head.run_id, _owner(options, found)
    refuse_untrusted_run(found.stored.created.get("launch"), f"run {run_id}", journal_file(options.journal))
    launch, parts = rebuilt(Launch.of(found.stored.created), run_id, options.instead)
    limits = _limits(options, found)
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


def _limits(options: RunsResumeOptions, found: StoredRunToResume) -> Limits | None:
    """Return the limits of the run with the given ones put over them; None if none is given."""
    if not options.limits:
        return None
    return limits_from(options.limits, found.stored.context.get("limits") or {})


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


def _refuse_owned(options: RunsResumeOptions, found: StoredRunToResume) -> int:
    """Ask the process that owns a paused run to resume it. Raises ConfigError if it is not paused."""
    head = found.head
    changed = options.instead != Replacement() or options.limits
    if head.status == "parked" and head.reason == "paused" and head.lease_expires_in is None and not changed:
        return post_resume(head.run_id, options.by, options)
    raise owned_elsewhere(head, found.show)


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


def _print_ended(result: Result, *, json: bool) -> int:
    if not json:
        say(f"run {shown(result.run_id)} has ended:")
    usage = result.usage
    print_result(result, None if json else f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out")
    return EXIT_CODES[result.outcome]


# ---- the list ----


def list_open(journal: Address | None, *, json: bool) -> int:
    """Print every open run and its resume plan. Changes nothing."""

    async def work(store: OpenStore) -> int:
        recovery = Recovery(store.journal, LLM_LOOP, loop_codec(), "nobody", repeated=repeated_work)
        found = [(one, await _kept(recovery, one)) for one in await recovery.open_runs()]
        for one, launch in found:
            if json:
                say_json(asdict(one) | {"model": launch.model, "tools": list(launch.tools)})
            else:
                say("\n".join(_lines(store, one, launch)))
        others = await _others(store)
        if not json:
            say(_summary(len(found), others))
        return Exit.COMPLETED

    return at_journal(journal, work)


async def _kept(recovery: Recovery, run: OpenRun) -> Launch:
    try:
        return Launch.of((await recovery.read(run.run_id))[0].created)
    except RunError:  # its resume plan contains the problem
        return Launch()


async def _others(store: OpenStore) -> dict[str, int]:
    """Return how many open runs of other graphs there are."""
    heads, _ = await store.heads()
    names = [head.graph for head in heads if head.status != "ended" and head.graph != LLM_LOOP.name]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def _lines(store: OpenStore, run: OpenRun, launch: Launch) -> Iterator[str]:
    reason = f" ({run.reason})" if run.reason else ""
    yield shown(f"{run.run_id}  {run.status}{reason} in {run.state}", 300)
    yield shown(f"    {run.will}", 600)
    if run.owner is None and run.fingerprint == LLM_LOOP.fingerprint:
        model = () if launch.model else ("--model", "SPEC")
        yield f"    {store.command('resume', run.run_id, *model)}"


def _summary(found: int, others: dict[str, int]) -> str:
    more = "".join(
        f"; {count} of graph {shown(name)!r}, for another program" for name, count in others.items()
    )
    if not found:
        return f"no run is open{more}"
    return f"\n{found} open; nothing was touched{more}"
