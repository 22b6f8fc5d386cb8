"""`orchestrator runs fork`: a new run from the conversation of another one after one of its turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orchestrator.cli.launch import Launch, named, rebuilt
from orchestrator.cli.load import limits_from
from orchestrator.cli.output import shown
from orchestrator.cli.run import ViewOptions, conducted, new_id
from orchestrator.cli.runs.phrase import many
from orchestrator.cli.runs.store import OpenStore, at_journal, journal_file
from orchestrator.cli.runs_group import ForkOptions
from orchestrator.cli.trust.consent import refuse_untrusted_run
from orchestrator.errors import ConfigError
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record, RunHead
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.runtime.llm_loop.codec import history_of, loop_codec
from orchestrator.runtime.service.option import SHARED, stored_data


@dataclass(frozen=True, slots=True)
class Origin:
    """The starting point of a fork."""

    stored: StoredRun
    """The run after that turn."""
    turn: int
    messages: Sequence[Message]


def fork_run(options: ForkOptions) -> int:
    """Start a new run, of the same agent, from a run of the journal; return the exit code of the outcome."""
    run_id = new_id(options.run_id)

    async def work(store: OpenStore) -> tuple[RunHead, Origin]:
        head = await store.run(options.run)
        if head.graph != LLM_LOOP.name:
            raise ConfigError(
                f"run {head.run_id} belongs to graph {shown(head.graph)!r}: it has no conversation"
            )
        return head, cut(head.run_id, await store.journal.load(head.run_id), options.turn)

    head, origin = at_journal(options.journal, work)
    messages = [*origin.messages, *([Message("user", options.prompt)] if options.prompt else [])]
    if not messages or messages[-1].role == "assistant":
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
    launch, parts = rebuilt(launch, origin.stored.run_id, options.instead)
    limits = limits_from(options.limits, origin.stored.context.get("limits") or {})
    view = ViewOptions(run_id, options.journal, options.log, options.json)
    host = stored_data(created, SHARED)
    return conducted(
        view, launch, parts, limits, lambda agent: named(agent, head).run(messages, run_id=run_id, **host)
    )


def cut(run_id: str, records: Iterable[Record], turn: int | None) -> Origin:
    """Return a run after a turn, with an answer to each call. Raises ConfigError for a turn that does not exist."""
    stored, answered = StoredRun(run_id), 0
    whole = True
    for record in records:
        if record.kind == "answer":
            answered = int(record.body["iteration"])
            whole = whole and (turn is None or answered <= turn)
        if whole:
            stored.fold(record.kind, record.body)
    if turn is not None and not 0 <= turn <= answered:
        raise ConfigError(f"run {run_id} has {many(answered, 'turn')}: --turn is 0 to {answered}")
    return Origin(stored, answered if turn is None else turn, history_of(stored, loop_codec()))
