"""`orchestrator runs cancel|pause|approve|reject|respond`: a request is checked against the records, then posted.

The owner of the run carries it out at once; without an owner, an engine or the next `runs resume` does.
A request that the records contradict is refused here with a message; the run checks again when it
takes it. Of several answers to one question the journal keeps the first (`orchestrator.runtime.service.answer`).
Without a run, a cancel or a pause goes to each open run that meets the conditions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.load import decoded_text, known_actor
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs.listing import FilterOptions
from orchestrator.cli.runs.phrase import many, moment, span
from orchestrator.cli.runs.question import answer_fault, expired
from orchestrator.cli.runs.run_service import (
    engine_of,
    lets_go_on,
    named,
    refuse_approval,
    resumption,
    root_story,
)
from orchestrator.cli.runs.store import OpenStore, at_journal, holder, position_of
from orchestrator.cli.spread import spread
from orchestrator.engines.engine_directory import EngineInfo
from orchestrator.errors import AnswerRefused, ConfigError
from orchestrator.journal.address import Address
from orchestrator.kernel.journal import Posted, RunHead
from orchestrator.runtime.runs.runs import RunRequest, Runs
from orchestrator.runtime.runs.story import RunDetails, Story
from orchestrator.runtime.service.answer import PostedRequest
from orchestrator.runtime.service.descendant import PendingQuestion

ANSWERS = ("approve", "reject", "respond")
"""Kinds of requests that answer a question."""
WAIT = 2.0
"""Seconds that `cancel` waits for the run to end."""
POLL = 0.05

_AT_RESUME = {"pause": "it stays as it is, and parks at once when it is resumed by"}
"""Kind of a request -> its effect on a run without an owner, followed by the next command."""


OneRun = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run id, or at least its first 4 characters.", show_default=False),
]


@dataclass(frozen=True, kw_only=True)
class RequestOrigin:
    """The actor of a request to a run, and the reason."""

    by: given.By = None
    why: given.Why = None
    json: given.Json = False
    journal: given.Journal = None


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """The call that is answered."""

    call: Annotated[
        str | None, typer.Option("--call", metavar="KEY", help="Which call, where several are asked about.")
    ] = None
    digest: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST",
            help="Of the call you saw, at least 8 characters, all if a screen does not show the whole call; for "
            "another one nothing is posted.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The command line of a request."""

    kind: str
    run: str
    by: str | None
    why: str | None
    json: bool
    journal: Address | None
    call: str | None = None
    digest: str | None = None
    arguments: str | None = None
    content: str | None = None
    end: bool = False


@dataclass(slots=True)
class RunPosition:
    """The state of a run at one moment."""

    details: RunDetails
    engine: EngineInfo | None
    """The engine that resumes the run without a request, if the run has no owner."""
    root: Story
    """The run whose resumption resumes this one."""

    @classmethod
    async def of(cls, store: OpenStore, run_id: str) -> RunPosition:
        """Read a run."""
        found = await store.runs.get(run_id)
        root = await root_story(store, found.head, found.story)
        return cls(found, await engine_of(store, found.head, found.story), root)

    @property
    def head(self) -> RunHead:
        """The head of the run."""
        return self.details.head

    @property
    def story(self) -> Story:
        """The history of the run."""
        return self.details.story

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.head.status == "ended"

    @property
    def left(self) -> bool:
        """Whether the owner of the run has died, or hangs, and no engine resumes the run for a cancel."""
        hangs = self.head.owner is not None and self.head.lease_expires_in is not None
        return not self.ended and self.engine is None and (self.details.owner_died or hangs)

    def operation(self, now: float) -> str:
        """Name the current operation of the run."""
        story = self.story
        since = "" if story.entered_at is None else f" for {span(now - story.entered_at)}"
        tools = ", ".join(f"{shown(call.tool, 80)} ({call.key}, {call.effect})" for call in story.running)
        doing = f", running {tools}" if tools else ""
        return f"{story.state or 'its first state'}{since}{doing}"


@spread
def approve(
    run: given.RunId,
    *,
    which: CallOptions,
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="Run it with these arguments instead: a JSON object.")
    ] = None,
    asking: RequestOrigin,
) -> int:
    """Approve a call, perhaps with other arguments."""
    return _post("approve", run, asking, **vars(which), arguments=arguments)


@spread
def reject(
    run: given.RunId,
    *,
    end: Annotated[
        bool, typer.Option("--end", help="End the whole run as rejected, not just the call.")
    ] = False,
    which: CallOptions,
    asking: RequestOrigin,
) -> int:
    """Reject a call: the model reads the reason. With --end, end the run."""
    return _post("reject", run, asking, **vars(which), end=end)


@spread
def respond(
    run: given.RunId,
    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="What the model reads as the result; - reads standard input."),
    ],
    *,
    which: CallOptions,
    asking: RequestOrigin,
) -> int:
    """Give the result of a call yourself; the tool does not run."""
    return _post("respond", run, asking, **vars(which), content=decoded_text(text, "the result"))


@spread
def cancel(
    run: OneRun = None, *, several: FilterOptions, yes: given.Yes = False, asking: RequestOrigin
) -> int:
    """Ask a run to stop, and wait up to 2 s for it; or several runs.

    If it has not stopped by then, the command names its current operation. Without RUN: the open and parked runs that
    meet every condition given; without --yes they are only listed.
    """
    return _to_one_or_several("cancel", run, several, asking, yes=yes)


@spread
def pause(
    run: OneRun = None, *, several: FilterOptions, yes: given.Yes = False, asking: RequestOrigin
) -> int:
    """Ask a run to park; `runs resume` continues it. Or several runs.

    Without RUN: the open and parked runs that meet every condition given; without --yes they are only listed.
    """
    return _to_one_or_several("pause", run, several, asking, yes=yes)


def _to_one_or_several(
    kind: str, run: str | None, several: FilterOptions, asking: RequestOrigin, *, yes: bool
) -> int:
    if run is None:
        return post_to_several(kind, several, asking, yes=yes)
    if any(value is not None for value in several.conditions.values()):
        raise ConfigError("give the id of a run, or conditions on runs, not both")
    return _post(kind, run, asking)


def _post(kind: str, run: str, asking: RequestOrigin, **answer: Any) -> int:
    return post(RequestOptions(kind=kind, run=run, **answer, **vars(asking)))


def post_resume(run_id: str, by: str | None, options: given.DisplayOptions) -> int:
    """Post the request to resume a run for the process that owns it. Raises ConfigError as `post`."""
    return post(
        RequestOptions(kind="resume", run=run_id, by=by, why=None, json=options.json, journal=options.journal)
    )


def post(options: RequestOptions) -> int:
    """Check a request and post it for the run. Raises ConfigError when it cannot be carried out."""
    by = known_actor(options.by, "decides")

    async def work(store: OpenStore) -> int:
        run_id = (await store.run(options.run)).run_id
        if options.kind in ANSWERS:
            run_id = await _asking_run(store, run_id, options)
        found = await RunPosition.of(store, run_id)
        if found.head.owner is None:  # a process that works on the run receives pause and cancel
            refuse_approval(store, found.head)
        if options.kind in ANSWERS:
            request, repeated = await _answered(store, options, found, by)
        else:
            if found.ended:
                raise ConfigError(_ended(found))
            [done] = await poster(store.runs, options.kind)(run_id, by=by, why=options.why or "")
            if done.posted is None:
                raise ConfigError(done.refused)
            request, repeated = done.posted, done.repeated
        if options.kind == "cancel" and found.head.owner is not None:
            until = time.monotonic() + WAIT
            while time.monotonic() < until:
                if (await store.journal.head(run_id)).status == "ended":
                    break
                await asyncio.sleep(POLL)
            found = await RunPosition.of(store, run_id)
        _print_request(store, options, found, request, repeated=repeated)
        return Exit.FAILED if options.kind == "cancel" and found.left else Exit.COMPLETED

    return at_journal(options.journal, work)


# ---- requests ----


async def _asking_run(store: OpenStore, run_id: str, options: RequestOptions) -> str:
    """Return the run below this one whose question has the whole digest of the answer; else this run."""
    digest = (options.digest or "").lower()
    for one in await store.runs.pending(run_id):
        if one.digest == digest and options.call in (None, one.key):
            return one.run_id
    return run_id


def poster(runs: Runs, kind: str) -> Callable[..., Awaitable[list[RunRequest]]]:
    """Return the method that posts requests of a kind."""
    return {"pause": runs.pause, "resume": runs.request_resume, "cancel": runs.cancel}[kind]


async def _answered(store: OpenStore, options: RequestOptions, found: RunPosition, by: str) -> PostedRequest:
    """Post an answer; return the one that the journal keeps, and whether it existed before. Raises ConfigError."""
    run_id, runs = found.head.run_id, store.runs
    pending = await runs.pending(run_id)
    below = [one for one in pending if one.run_id != run_id]
    asked = [one for one in pending if one.run_id == run_id and options.call in (None, one.key)]
    if len(asked) == 1 and not expired(asked[0], time.time()):
        fault = answer_fault(store, run_id, asked[0], options.kind, options.digest)
        if fault is not None:
            raise ConfigError(fault)
    which: dict[str, Any] = {"digest": options.digest, "by": by, "why": options.why or ""}
    try:
        match options.kind:
            case "approve":
                return await runs.approve(run_id, options.call, arguments=options.arguments, **which)
            case "reject":
                return await runs.reject(run_id, options.call, end=options.end, **which)
            case _:
                return await runs.respond(run_id, options.content or "", options.call, **which)
    except AnswerRefused as error:
        waits = f"; {waiting_descendant(store, below)}" if below and error.kind != "over" else ""
        raise ConfigError(_refused(options, found, error) + waits) from None


def waiting_descendant(store: OpenStore, below: Sequence[PendingQuestion]) -> str:
    """Return which run below the addressed one waits, and the command that shows its question."""
    first, more = below[0], len({one.run_id for one in below}) - 1
    others = f" and {many(more, 'other run')} below it" if more else ""
    agents = " > ".join(shown(name, 80) for name in first.agents)
    command = store.command("show", first.run_id)
    return f"run {shown(first.run_id)} ({agents}){others} waits about call {first.key}: `{command}`"


def _ended(found: RunPosition) -> str:
    over = position_of(found.head, found.story)
    return f"run {found.head.run_id} is over ({over}, {moment(found.head.updated_at)}): nothing was posted"


def _refused(options: RequestOptions, found: RunPosition, error: AnswerRefused) -> str:
    """Return why an answer is not valid, and which one would be."""
    asked, run_id = found.story.questions, found.head.run_id
    known = ", ".join(f"{one.key} ({shown(one.tool, 80)})" for one in asked.values())
    if error.earlier is not None:
        earlier = error.earlier
        when = f" at {moment(float(earlier['at']))}" if earlier.get("at") else ""
        by = shown(str(earlier.get("by") or "unknown"), 80)
        edited = " with edited arguments" if earlier.get("arguments") is not None else ""
        call = shown(str(earlier.get("key")), 40)
        answer = f"{earlier.get('decision')}{edited} by {by}{when}"
        return f"call {call} was answered already: {answer}; nothing was posted"
    if error.kind == "over" and found.ended:
        return _ended(found)
    if error.kind == "several":
        return f"{many(len(asked), 'question')} are pending; choose one with --call: {known}"
    if error.kind == "unasked" and options.call is not None:
        return f"no question is open about call {shown(options.call, 40)!r}; pending: {known or 'nothing'}"
    if error.kind == "unasked":
        state = found.story.state or "its first state"
        return f"run {run_id} waits for no answer: it is {position_of(found.head, found.story)} in {state}"
    why = shown(str(error).removeprefix(f"run {run_id!r} refuses the answer: "), 300)
    about = asked.get(options.call or next(iter(asked), ""))
    call = "" if about is None else f" about call {about.key} ({shown(about.tool, 80)})"
    return f"the answer{call} does not count and was not posted: {why}"


def _print_request(
    store: OpenStore, options: RequestOptions, found: RunPosition, request: Posted, *, repeated: bool
) -> None:
    run_id, head, story = found.head.run_id, found.head, found.story
    by_engine = head.owner is None and found.engine is not None and lets_go_on(request.kind, story)
    if options.json:
        effect = "by owner" if head.owner is not None else "by engine" if by_engine else "at resume"
        works = not found.ended and head.owner is not None
        say_json(
            {
                "run_id": run_id,
                "request": {name: getattr(request, name) for name in ("id", "kind", "body", "by", "at")},
                "repeated": repeated,
                "owner": head.owner,
                "carried_out": "done" if found.ended else effect,
                "status": head.status,
                "reason": head.reason,
                "state": story.state,
                "running": [asdict(call) for call in story.running] if works else [],
            }
        )
        return
    what = f"{request.kind} {request.body['call']}" if "call" in request.body else request.kind
    what += ", and end the run," if request.body.get("end") else ""
    why = f": {shown(str(request.body['why']), 300)}" if request.body.get("why") else ""
    verb = "was posted before, not again" if repeated else "posted"
    say(f"{verb}: {what} for run {shown(run_id)} by {shown(request.by)}{why}")
    if found.ended:
        say(f"the run {shown(position_of(head, story))}")
    elif by_engine and found.engine is not None:
        say(f"the run has no owner; {named(found.engine)} resumes it and carries this out")
        say(f"  {store.command('events', run_id, '--follow', '--since', str(story.last + 1))}")
    elif request.kind == "cancel" and found.left:
        owner = (
            f"{shown(holder(head))} does not answer"
            if head.owner
            else "the process that owned the run is gone"
        )
        say(f"{owner}: the run is not cancelled until it is resumed by")
        say(f"  {resumption(store, found.root)}")
    elif head.owner is None:
        say(f"the run has no owner; {_AT_RESUME.get(request.kind, 'this will be carried out by')}")
        say(f"  {resumption(store, found.root)}")
    else:
        after = f", after {found.operation(time.time())}" if request.kind in ("cancel", "pause") else ""
        say(f"{shown(holder(head))} holds the run and carries it out{after}")
        say(f"  {store.command('events', run_id, '--follow', '--since', str(story.last + 1))}")


def post_to_several(kind: str, several: FilterOptions, asking: RequestOrigin, *, yes: bool) -> int:
    """Post a request to each run that meets the conditions; without `yes` only print the runs. Raises ConfigError."""
    by = known_actor(asking.by, "decides")

    async def work(store: OpenStore) -> int:
        done = await poster(store.runs, kind)(
            by=by, why=asking.why or "", preview=not yes, **several.conditions
        )
        left = [
            one.run.run_id
            for one in done
            if kind == "cancel"
            and one.posted is not None
            and (await RunPosition.of(store, one.run.run_id)).left
        ]
        for one in done:
            if asking.json:
                say_json(
                    {
                        "run_id": one.run.run_id,
                        "status": one.run.status,
                        "agent": one.run.agent,
                        "request": None if one.posted is None else one.posted.id,
                        "repeated": one.repeated,
                        "refused": one.refused,
                        "owner_gone": one.run.run_id in left,
                    }
                )
            else:
                say(_several_line(kind, one))
        if not asking.json:
            if not yes:
                what = f"{many(len(done), 'run')} would receive a {kind}"
                say(f"{what}; --yes posts it" if done else "no open or parked run fits")
            elif not done:
                say("no open or parked run fits: nothing was posted")
            if left:
                gone = ", ".join(map(shown, left))
                say(f"not cancelled, because their owner is gone, until they are resumed: {gone}")
        return Exit.FAILED if left or any(one.refused for one in done) else Exit.COMPLETED

    return at_journal(asking.journal, work)


def _several_line(kind: str, one: RunRequest) -> str:
    run_id = shown(one.run.run_id)
    if one.refused:
        return f"refused: {shown(one.refused, 300)}"
    if one.posted is not None:
        return f"{'was posted before, not again' if one.repeated else 'posted'}: {kind} for run {run_id}"
    agent = f", agent {shown(one.run.agent)}" if one.run.agent else ""
    return f"  {run_id}  {one.run.status}{agent}, {shown(one.run.state) or 'not started'}"
