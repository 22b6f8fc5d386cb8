"""`orchestrator runs show`: everything about one run, and the next actions; or its timeline as a drawing."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import (
    check_picture,
    in_words,
    joined,
    painted,
    save_picture,
    say,
    say_json,
    shown,
)
from orchestrator.cli.runs import question
from orchestrator.cli.runs.phrase import (
    call_json,
    call_table,
    heading,
    many,
    moment,
    of_status,
    roughly,
    span,
    stored_calls,
    table,
    tags_of,
    token_counts,
)
from orchestrator.cli.runs.run_service import engine_of, named, resumption, root_story
from orchestrator.cli.runs.store import (
    WAITS_FOR_AGENT,
    OpenStore,
    at_journal,
    head_json,
    head_reason,
    holder,
    position_of,
)
from orchestrator.cli.spread import spread
from orchestrator.engines.engine_directory import EngineInfo, engines, waits_for_agent
from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import Posted, RunHead
from orchestrator.llm.message import NO_USAGE, Usage
from orchestrator.machines.timeline import Timeline
from orchestrator.runtime.runs.listing import RunTree, read_tree, status_name
from orchestrator.runtime.runs.story import RUNNING, PathStep, StateVisit, Story, folded
from orchestrator.runtime.service.descendant import PendingQuestion, pending_questions
from orchestrator_guards.money import amount


@dataclass(frozen=True, slots=True)
class RunOverview:
    """The state of one run at one moment."""

    store: OpenStore
    head: RunHead
    story: Story
    unread: list[Posted]
    """Requests in the inbox that the run has not taken yet."""
    tree_of_runs: RunTree
    now: float
    engine: EngineInfo | None
    """The engine that resumes the run without a request, if the run has no owner."""
    waits_for_agent: bool
    """Whether the run has an answer and no live engine has its agent."""
    root: Story
    """The run whose resumption resumes this one."""
    below: list[PendingQuestion]
    """Unanswered questions of its descendants."""


@spread
def show(
    run: given.RunId,
    *,
    full: Annotated[bool, typer.Option("--full", help="Show the calls of its questions completely.")] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw what happened when, into FILE.svg or FILE.png.", show_default=False
        ),
    ] = None,
    turns: Annotated[
        str | None, typer.Option(metavar="N-M", help="Only these turns of the timeline.", show_default=False)
    ] = None,
    at: given.JournalOptions,
) -> int:
    """Show a run: state, questions, path, times, tokens, decisions.

    A call that the run asks about is cut if it does not fit on a screen; the answer then needs the full digest, which
    --full prints. With --timeline, only the drawing is written.
    """
    if timeline is not None or turns is not None:
        return draw_timeline(run, timeline, turns, at)

    async def work(store: OpenStore) -> int:
        head = await store.run(run)
        story = await store.story(head)
        unread = await story.unread(store.journal)
        tree_of_runs = await read_tree(store.journal, head)
        engine = await engine_of(store, head, story)
        root = await root_story(store, head, story)
        now = time.time()
        pending = await pending_questions(store.journal, head.run_id, now)
        below = [one for one in pending if one.run_id != head.run_id]
        if head.status == "open" and head.owner is not None:
            story.go_on(now - head.updated_at)
        unheard = (
            await waits_for_agent(store.journal, head, await engines(store.journal)) if unread else False
        )
        found = RunOverview(store, head, story, unread, tree_of_runs, now, engine, unheard, root, below)
        if at.json:
            say_json(_plain(found))
            return Exit.COMPLETED
        questions = (
            line
            for one in story.questions.values()
            for line in question.described(
                store, head.run_id, one, unread, now, resumption(store, root), full=full
            )
        )
        child_questions = (
            line
            for one in below
            for line in (
                f"  run {shown(one.run_id)}, {' > '.join(shown(name, 80) for name in one.agents)}:",
                *question.described(store, one.run_id, one, (), now, resumption(store, root), full=full),
            )
        )
        sections = {
            "": _head(found),
            "waiting for an answer": questions,
            "child runs that wait for an answer": child_questions,
            f"path ({many(story.transitions, 'transition')})": drawn(story.visits),
            "time in each state": _times(story),
            "usage": _usage(story),
            "tool calls": _calls(found),
            "errors of tools": _tool_errors(story),
            "agent calls": call_table(stored_calls(story.context)),
            "people": _participants(found),
            "sub-agents": _tree(tree_of_runs),
            "next": _next(found),
        }
        for name, lines in sections.items():
            some = list(lines)
            if some and name:
                say("")
                say(heading(name))
            for line in some:
                say(line)
        return Exit.COMPLETED

    return at_journal(at.journal, work, only_reads=True)


def _head(found: RunOverview) -> Iterator[str]:
    head, story, failed = found.head, found.story, found.story.error
    here = f"{story.state or '(not started)'}, turn {story.turn}"
    if head.status == "open" and story.entered_at is not None:
        here += f", for {span(found.now - story.entered_at)}"
    yield heading(f"run {shown(head.run_id)}")
    facts = {
        "graph": f"{head.graph}, fingerprint {head.fingerprint[:12] or '(none)'}",
        "status": WAITS_FOR_AGENT if found.waits_for_agent else position_of(head, story),
        "held by": holder(head) or "no process",
        "state": here,
        "started": f"{moment(head.created_at)}, {roughly(found.now - head.created_at)} ago",
        "updated": f"{moment(head.updated_at)}, {roughly(found.now - head.updated_at)} ago",
        "active": f"{span(story.elapsed)}, waiting and downtime left out",
        "agent": " ".join(
            str(story.created[key]) for key in ("agent", "agent_version") if story.created.get(key)
        ),
        "tags": tags_of(story.created.get("tags") or {}),
        "conversation": head.conversation_id or "",
        "parent": head.parent_run_id or "",
        "error": in_words(f"{failed.facts}: {failed.message}") if failed else "",
        "failed in": failed.place if failed else "",
    }
    for name, value in facts.items():
        if value:
            paint = of_status(status_name(head)) if name == "status" else ""
            yield joined(f"  {name:<12}  ", painted(shown(value, 600, keep=""), paint, colour=bool(paint)))


def _times(story: Story) -> list[str]:
    whole = sum(stats.total for stats in story.states().values()) or 1.0
    rows = [
        (
            f"{name} (running)" if story.going_on and name == story.state else name,
            f"{stats.visits:,}",
            f"{stats.total:.3f}",
            f"{stats.mean:.3f}",
            f"{stats.longest:.3f}",
            f"{stats.total / whole:.1%}",
        )
        for name, stats in story.states().items()
    ]
    heads = ("state", "visits", "total s", "mean s", "longest s", "share")
    return table(heads, rows, right=heads[1:]) if rows else []


def _usage(story: Story) -> Iterator[str]:
    if story.requests:
        own = story.usage
        tokens = (
            f"{own.input_tokens:,} tokens in ({own.cached_input_tokens:,} cached), {own.output_tokens:,} out"
        )
        yield f"  {many(story.requests, 'answer')}, {tokens}{_cost(own, story.currency)}, {story.retries:,} retried"
        guessed = Usage(
            own.estimated_input_tokens,
            own.estimated_output_tokens,
            cost_micros=own.estimated_cost_micros or None,
        )
        if guessed != NO_USAGE:
            counts = f"{token_counts(guessed)}{_cost(guessed, story.currency)}"
            yield f"  of these an estimate, for answers without usage from their server: {counts}"
    if story.estimated != NO_USAGE:
        counts = f"{token_counts(story.estimated)}{_cost(story.estimated, story.currency)}"
        yield f"  estimate charged for lost and interrupted answers: {counts}"
    if story.total != story.usage:
        total = story.total
        whole = f"{total.input_tokens + total.output_tokens:,} tokens: {token_counts(total)}"
        cost = _cost(total, story.currency)
        yield f"  counted by the limits, with child runs and estimates: {whole}{cost}"
    if story.requests:
        yield f"  models: {', '.join(f'{shown(name, 80)} ×{count:,}' for name, count in story.models.most_common())}"


def _cost(usage: Usage, currency: str) -> str:
    if usage.cost_micros is None:
        return ""
    most = "" if usage.cost_max_micros is None else f" to {amount(usage.cost_max_micros)}"
    return f", cost {amount(usage.cost_micros)}{most} {currency}".rstrip()


def _calls(found: RunOverview) -> list[str]:
    rows = [
        (
            one["tool"],
            one["effect"] or "(not run)",
            str(one["calls"]),
            ", ".join(f"{name} {count:,}" for name, count in one["outcomes"].items()),
            f"{one['seconds']:.3f}",
        )
        for one in calls_json(found.story, owned=found.head.owner is not None)
    ]
    return (
        table(("tool", "effect", "calls", "outcomes", "total s"), rows, right=("calls", "total s"))
        if rows
        else []
    )


def _tool_errors(story: Story) -> Iterator[str]:
    """Yield the last exceptions of tools, with the key of their calls."""
    raised = [call for call in story.calls.values() if call.error is not None]
    if len(raised) > _MOST_ERRORS:
        yield f"  {len(raised) - _MOST_ERRORS:,} earlier ones"
    for call in raised[-_MOST_ERRORS:]:
        yield shown(f"  {call.key} {call.error}", 600, keep="")


def calls_json(story: Story, *, owned: bool) -> list[dict[str, Any]]:
    """Return calls, outcomes and seconds of each tool and effect. Only a run with an owner has running calls."""
    grouped: dict[tuple[str, str], Counter[str]] = {}
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    for call in story.calls.values():
        name = call.tool, call.effect
        outcome = "not finished" if call.outcome == RUNNING and not owned else call.outcome
        grouped.setdefault(name, Counter())[outcome] += 1
        seconds[name] += call.seconds
    return [
        {
            "tool": tool,
            "effect": effect,
            "calls": outcomes.total(),
            "outcomes": dict(outcomes),
            "seconds": seconds[tool, effect],
        }
        for (tool, effect), outcomes in grouped.items()
    ]


def _participants(found: RunOverview) -> Iterator[str]:
    for kind, body in found.story.decisions:
        at = moment(float(body["at"])) if body.get("at") else " " * 19
        what = {"approval": body.get("decision"), "control": body.get("kind")}.get(kind) or kind
        key = f" {body['key']}" if body.get("key") else ""
        more = (
            ", arguments edited" if body.get("arguments") else ", to end the run" if body.get("end") else ""
        )
        why = f": {body['why']}" if body.get("why") else ""
        refused = f" (refused: {body['refused']})" if body.get("refused") else ""
        said = f"{what}{key} by {body.get('by') or 'unknown'}{more}{why}{refused}"
        yield f"  {at}  {shown(said, 600, keep='')}"
    for one in found.unread:
        call = f" {one.body['call']}" if one.body.get("call") else ""
        why = f": {one.body['why']}" if one.body.get("why") else ""
        yield shown(
            f"  {moment(one.at)}  {one.kind}{call} by {one.by or 'unknown'}{why} (not read yet)",
            600,
            keep="",
        )


def _next(found: RunOverview) -> Iterator[str]:
    """Return the commands that a person probably needs now."""
    head, story = found.head, found.story
    asks = any(not question.expired(one, found.now) for one in (*story.questions.values(), *found.below))
    if head.status == "ended":
        yield f"  {found.store.command('events', head.run_id)}"
        yield f"  {found.store.command('export', head.run_id, '--content', '--output', f'{head.run_id}.jsonl')}"
    elif head.owner is not None:
        if asks:
            yield "  answer as above, then follow the run:"
        since = str(max(story.last - 9, 0))
        yield f"  {found.store.command('events', head.run_id, '--follow', '--since', since)}"
        yield f"  {found.store.command('cancel', head.run_id, '--why', 'TEXT')}"
    elif found.waits_for_agent:
        agent = f"agent {shown(head.agent)!r}" if head.agent else "its agent"
        version = f"graph {head.graph!r} ({head.fingerprint[:12]})"
        yield f"  start an engine that has {agent} with {version}: it resumes the run"
        yield f"  {found.store.command('migrate', '--dry-run', head.run_id)}"
    elif not asks or found.unread:
        yield _taken_up(found) or f"  {resumption(found.store, found.root)}"
    else:
        yield _taken_up(found) or f"  answer as above, then: {resumption(found.store, found.root)}"


def _taken_up(found: RunOverview) -> str | None:
    """Return which engine resumes a run without an owner as soon as possible; None if a person has to resume it."""
    from orchestrator.runtime.service.resume_plan import paused

    if found.engine is None or paused(found.story):
        return None
    asks = bool(found.story.questions or found.below) and not found.unread
    return f"  {'answer as above: ' if asks else ''}{named(found.engine)} resumes it automatically"


def _plain(found: RunOverview) -> dict[str, Any]:
    story, store, run_id = found.story, found.store, found.head.run_id
    whole = sum(stats.total for stats in story.states().values()) or 1.0
    return {
        **head_json(found.head),
        "waits_for_agent": found.waits_for_agent,
        **{key: story.created.get(key) for key in ("agent", "agent_version", "tags")},
        "outcome": story.ended.get("outcome") if story.ended else None,
        "state": story.state,
        "turn": story.turn,
        "entered_at": story.entered_at,
        "active_s": story.elapsed,
        "transitions": story.transitions,
        "error": story.error and {**(story.failure or {}), "message": story.error.message},
        "waiting_for": [question.as_json(store, run_id, one, found.now) for one in story.questions.values()],
        "child_runs_waiting_for": [
            {"run_id": one.run_id, "agents": one.agents} | question.as_json(store, one.run_id, one, found.now)
            for one in found.below
        ],
        "running": [asdict(call) for call in story.running] if found.head.owner is not None else [],
        "path": [step.as_json() for step in folded(story.visits)],
        "states": {
            name: {
                "visits": stats.visits,
                "total_s": stats.total,
                "mean_s": stats.mean,
                "longest_s": stats.longest,
                "share": stats.total / whole,
            }
            for name, stats in story.states().items()
        },
        "usage": story.total.as_json()
        | {"currency": story.currency, "answers": story.requests, "retries": story.retries},
        "models": dict(story.models),
        "agent_calls": [call_json(one) for one in stored_calls(story.context)],
        "tools": calls_json(story, owned=found.head.owner is not None),
        "tool_errors": [
            {"key": call.key, "tool": call.tool, **call.error.as_record()}
            for call in story.calls.values()
            if call.error is not None
        ],
        "people": [
            {"record": kind}
            | {name: one for name, one in body.items() if name not in ("content", "arguments", "context")}
            for kind, body in story.decisions
        ],
        "unread": [asdict(one) for one in found.unread],
        "children": [child.as_json() for child in found.tree_of_runs.children],
        "next": [line.strip() for line in _next(found)],
    }


MOST_LINES = 30
"""Most lines of a drawing; a note replaces the middle of a longer one."""
_MOST_ERRORS = 10
"""Most exceptions of tools that are listed; --json has all."""
_WIDTH = 110
_INDENT = "  "
_WORTH_SAYING = 0.0005
"""Stays shorter than these seconds are shown without their time."""


def drawn(visits: Sequence[StateVisit]) -> list[str]:
    """Return the path as lines of text."""
    lines = [line for step in folded(visits) for line in _step_lines(step)]
    if len(lines) <= MOST_LINES:
        return lines
    half = MOST_LINES // 2
    return [*lines[:half], f"{_INDENT}… {len(lines) - 2 * half:,} lines more …", *lines[-half:]]


def _step_lines(step: PathStep) -> Iterator[str]:
    """Draw one step; a long one continues on the next line."""
    count = f"{step.times:,} × " if step.times > 1 else ""
    line = f"{_INDENT}{count}"
    for number, (state, seconds) in enumerate(zip(step.states, step.seconds, strict=True)):
        cell = shown(state, 60)
        if seconds is None:
            cell += " …"
        elif seconds >= _WORTH_SAYING:
            cell += f" {span(seconds)}"
        if number and len(line) + len(cell) > _WIDTH:
            yield line.rstrip()
            line = _INDENT + " " * len(count)
        line += cell + (" → " if number < len(step.states) - 1 else "")
    yield line


def _tree(tree: RunTree) -> Iterator[str]:
    """Draw the child runs of a run, a line for each; of many, those first that need attention."""
    ahead = [_children(tree, "  ")]
    while ahead:
        found = next(ahead[-1], None)
        if found is None:
            ahead.pop()
            continue
        line, child, lead = found
        yield line
        if child is not None:
            ahead.append(_children(child, lead))


def _children(tree: RunTree, lead: str) -> Iterator[tuple[str, RunTree | None, str]]:
    """Yield (line, child, prefix of the lines below it)."""
    children, others = tree.first_children, tree.other_children
    for number, child in enumerate(children, 1):
        head, is_last = child.head, number == len(children) and not others
        reason = head_reason(head)
        why = f" ({reason})" if reason not in ("-", "none") else ""
        held = f", held by {shown(holder(head))}" if head.owner else ""
        agent = f"  {shown(head.agent)}" if head.agent != tree.head.agent else ""
        line = f"{shown(head.run_id)}  {shown(head.graph)}{agent}  {head.status}{shown(why)}{held}"
        yield f"{lead}{'└─' if is_last else '├─'} {line}", child, f"{lead}{'   ' if is_last else '│  '}"
    if others:
        yield f"{lead}└─ {others}", None, ""


_TURNS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def draw_timeline(name: str, file: Path | None, turns: str | None, at: given.JournalOptions) -> int:
    """Write the timeline of a run to a file, and print its size."""
    from orchestrator.drawing.timeline import MOST_TURNS, timeline_svg  # a drawing, which `show` has not

    if file is None:
        raise ConfigError("--turns selects a part of a drawing; name its file with --timeline FILE.svg")
    check_picture(file)
    first = last = 0
    if turns is not None:
        part = _TURNS.fullmatch(turns)
        first, last = (int(part[1]), int(part[2] or part[1])) if part else (0, 0)
        if not 1 <= first <= last:
            raise ConfigError(f"--turns {turns!r} is no range of turns; one is N or N-M, from 1, as in 10-20")

    async def work(store: OpenStore) -> Timeline:
        return await store.runs.timeline((await store.run(name)).run_id)

    line = at_journal(at.journal, work, only_reads=True)
    if turns is not None:
        count = line.turns[-1].turn if line.turns else 0
        if first > count:
            raise ConfigError(f"run {line.name!r} has {many(count, 'turn')}; --turns starts at turn {first}")
        line = line.between(first, last)
    save_picture(file, timeline_svg(line))
    if at.json:
        say_json({"run_id": line.name, "output": str(file.absolute()), "turns": len(line.turns)})
        return Exit.COMPLETED
    columns = ", in columns; --turns N-M draws a part in full" if len(line.turns) > MOST_TURNS else ""
    say(f"{file}: {many(len(line.turns), 'turn')} of run {shown(line.name)}{columns}")
    return Exit.COMPLETED
