"""`orchestrator runs show`: everything about one run, and the next actions."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs import path, question, tree
from orchestrator.cli.runs.agent_calls import call_json, call_table, stored_calls, token_counts
from orchestrator.cli.runs.phrase import heading, many, moment, roughly, span, table, tags_of
from orchestrator.cli.runs.position import holder, position_of
from orchestrator.cli.runs.run_service import engine_of, named, resumption
from orchestrator.cli.runs.store import OpenStore, at_journal, head_json
from orchestrator.engines.engine_directory import EngineInfo
from orchestrator.journal.address import Address
from orchestrator.kernel.journal import Posted, RunHead
from orchestrator.llm.message import NO_USAGE, Usage
from orchestrator.runtime.runs.listing import RunTree, read_tree
from orchestrator.runtime.runs.story import RUNNING, Body, Story, folded


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
    full: bool
    """Whether the calls of its questions are shown completely."""


def show_run(name: str, *, full: bool, json: bool, journal: Address | None) -> int:
    """Print one run; with `full`, the calls of its questions are not cut."""

    async def work(store: OpenStore) -> int:
        head = await store.run(name)
        story = await store.story(head)
        unread = await story.unread(store.journal)
        tree_of_runs = await read_tree(store.journal, head)
        engine = await engine_of(store, head, story)
        now = time.time()
        if head.status == "open" and head.owner is not None:
            story.go_on(now - head.updated_at)
        found = RunOverview(store, head, story, unread, tree_of_runs, now, engine, full)
        if json:
            say_json(_plain(found))
        else:
            for line in _lines(found):
                say(line)
        return Exit.COMPLETED

    return at_journal(journal, work, only_reads=True)


def _lines(found: RunOverview) -> Iterator[str]:
    sections = (
        ("", _head(found)),
        ("waiting for an answer", _questions(found)),
        (f"path ({many(found.story.transitions, 'transition')})", path.drawn(found.story.visits)),
        ("time in each state", _times(found.story)),
        ("usage", _usage(found.story)),
        ("tool calls", _calls(found)),
        ("agent calls", call_table(stored_calls(found.story.context))),
        ("people", _participants(found)),
        ("sub-agents", tree.drawn(found.tree_of_runs)),
        ("next", _next(found)),
    )
    for name, lines in sections:
        some = list(lines)
        if some and name:
            yield ""
            yield heading(name)
        yield from some


def _head(found: RunOverview) -> Iterator[str]:
    head, story = found.head, found.story
    yield heading(f"run {shown(head.run_id)}")
    facts = {
        "graph": f"{head.graph}, fingerprint {head.fingerprint[:12] or '(none)'}",
        "status": position_of(head, story),
        "held by": holder(head) or "no process",
        "state": _where(found),
        "started": f"{moment(head.created_at)}, {roughly(found.now - head.created_at)} ago",
        "updated": f"{moment(head.updated_at)}, {roughly(found.now - head.updated_at)} ago",
        "active": f"{span(story.elapsed)}, waiting and downtime left out",
        "agent": " ".join(
            str(story.created[key]) for key in ("agent", "agent_version") if story.created.get(key)
        ),
        "tags": tags_of(story.created.get("tags") or {}),
        "conversation": head.conversation_id or "",
        "parent": head.parent_run_id or "",
        "error": f"{story.error_facts}: {story.error_text}" if story.failure else "",
    }
    for name, value in facts.items():
        if value:
            yield f"  {name:<12}  {shown(value, 600, keep='')}"


def _where(found: RunOverview) -> str:
    story = found.story
    since = story.entered_at
    lasts = found.head.status == "open" and since is not None
    here = f"{story.state or '(not started)'}, turn {story.turn}"
    return f"{here}, for {span(found.now - since)}" if lasts and since is not None else here


def _questions(found: RunOverview) -> Iterator[str]:
    for one in found.story.questions.values():
        again = resumption(found.store, found.story)
        told = question.described
        yield from told(found.store, found.head.run_id, one, found.unread, found.now, again, full=found.full)


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
        yield f"  {many(story.requests, 'answer')}, {tokens}{_cost(own)}, {story.retries:,} retried"
        guessed = Usage(
            own.estimated_input_tokens,
            own.estimated_output_tokens,
            cost_micros=own.estimated_cost_micros or None,
        )
        if guessed != NO_USAGE:
            counts = f"{token_counts(guessed)}{_cost(guessed)}"
            yield f"  of these an estimate, for answers without usage from their server: {counts}"
    if story.estimated != NO_USAGE:
        counts = f"{token_counts(story.estimated)}{_cost(story.estimated)}"
        yield f"  estimate charged for lost and interrupted answers: {counts}"
    if story.total != story.usage:
        total = story.total
        whole = f"{total.input_tokens + total.output_tokens:,} tokens: {token_counts(total)}{_cost(total)}"
        yield f"  counted by the limits, with child runs and estimates: {whole}"
    if story.requests:
        yield f"  models: {', '.join(f'{shown(name, 80)} ×{count:,}' for name, count in story.models.most_common())}"


def _cost(usage: Usage) -> str:
    if usage.cost is None:
        return ""
    most = "" if usage.cost_max_micros is None else f" to {usage.cost_max:g}"
    return f", cost {usage.cost:g}{most}"


def _calls(found: RunOverview) -> list[str]:
    rows = [
        (
            one["tool"],
            one["effect"] or "(not run)",
            str(one["calls"]),
            _counted(one["outcomes"]),
            f"{one['seconds']:.3f}",
        )
        for one in calls_json(found.story, owned=found.head.owner is not None)
    ]
    return (
        table(("tool", "effect", "calls", "outcomes", "total s"), rows, right=("calls", "total s"))
        if rows
        else []
    )


def _counted(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in outcomes.items())


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
        at = body.get("at")
        yield f"  {moment(float(at)) if at else ' ' * 19}  {_decision(kind, body)}"
    for one in found.unread:
        call = f" {one.body['call']}" if one.body.get("call") else ""
        why = f": {one.body['why']}" if one.body.get("why") else ""
        yield shown(
            f"  {moment(one.at)}  {one.kind}{call} by {one.by or 'unknown'}{why} (not read yet)",
            600,
            keep="",
        )


def _decision(kind: str, body: Body) -> str:
    what = {"approval": body.get("decision"), "control": body.get("kind")}.get(kind) or kind
    key = f" {body['key']}" if body.get("key") else ""
    edited = ", arguments edited" if body.get("arguments") else ", to end the run" if body.get("end") else ""
    why = f": {body['why']}" if body.get("why") else ""
    refused = f" (refused: {body['refused']})" if body.get("refused") else ""
    return shown(f"{what}{key} by {body.get('by') or 'unknown'}{edited}{why}{refused}", 600, keep="")


def _next(found: RunOverview) -> Iterator[str]:
    """Return the commands that a person probably needs now."""
    head, story = found.head, found.story
    if head.status == "ended":
        yield f"  {found.store.command('events', head.run_id)}"
        yield f"  {found.store.command('export', head.run_id, '--content', '--output', f'{head.run_id}.jsonl')}"
    elif head.owner is not None:
        if any(not question.expired(one, found.now) for one in story.questions.values()):
            yield "  answer as above, then follow the run:"
        since = str(max(story.last - 9, 0))
        yield f"  {found.store.command('events', head.run_id, '--follow', '--since', since)}"
        yield f"  {found.store.command('cancel', head.run_id, '--why', 'TEXT')}"
    elif all(question.expired(one, found.now) for one in story.questions.values()) or found.unread:
        yield _taken_up(found) or f"  {resumption(found.store, story)}"
    else:
        yield _taken_up(found) or f"  answer as above, then: {resumption(found.store, story)}"


def _taken_up(found: RunOverview) -> str | None:
    """Return which engine resumes a run without an owner as soon as possible; None if a person has to resume it."""
    from orchestrator.runtime.service.resume_plan import paused

    if found.engine is None or paused(found.story):
        return None
    asks = bool(found.story.questions) and not found.unread
    return f"  {'answer as above: ' if asks else ''}{named(found.engine)} resumes it automatically"


def _plain(found: RunOverview) -> dict[str, Any]:
    story, store, run_id = found.story, found.store, found.head.run_id
    whole = sum(stats.total for stats in story.states().values()) or 1.0
    return {
        **head_json(found.head),
        **{key: story.created.get(key) for key in ("agent", "agent_version", "tags")},
        "outcome": story.ended.get("outcome") if story.ended else None,
        "state": story.state,
        "turn": story.turn,
        "entered_at": story.entered_at,
        "active_s": story.elapsed,
        "transitions": story.transitions,
        "error": story.failure and {**story.failure, "message": story.error_text},
        "waiting_for": [question.as_json(store, run_id, one, found.now) for one in story.questions.values()],
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
        "usage": story.total.as_json() | {"answers": story.requests, "retries": story.retries},
        "models": dict(story.models),
        "agent_calls": [call_json(one) for one in stored_calls(story.context)],
        "tools": calls_json(story, owned=found.head.owner is not None),
        "people": [
            {"record": kind, **_without(body, ("content", "arguments", "context"))}
            for kind, body in story.decisions
        ],
        "unread": [asdict(one) for one in found.unread],
        "children": [child.as_json() for child in found.tree_of_runs.children],
        "next": [line.strip() for line in _next(found)],
    }


def _without(body: Body, names: Iterable[str]) -> dict[str, Any]:
    left = set(names)
    return {name: value for name, value in body.items() if name not in left}
