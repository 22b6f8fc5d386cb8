"""How a run without an owner is resumed: by a live engine, or by a command of a person."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.output import shown
from orchestrator.cli.runs.phrase import words
from orchestrator.cli.runs.store import OpenStore
from orchestrator.engines.engine_directory import EngineInfo, engines
from orchestrator.errors import ConfigError
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.runs.story import Story

GROUPS = {"pipeline": "pipeline", "ralph": "ralph", "code_mode": "rlm", "tools_mode": "rlm"}
"""Graph -> the group of commands that resumes its runs; runs of the loop need a model: `runs resume` resumes them.

Names and not the graphs, whose import takes longer than all the rest of `runs show`; a test compares them.
"""
APPROVAL, LLM_LOOP, CHECKPOINT = "approval", "llm_loop", "pipeline_checkpoint"
EVALUATION = "evaluation"


async def engine_of(store: OpenStore, head: RunHead, stored: StoredRun) -> EngineInfo | None:
    """Return the engine that resumes the run without a request as soon as that is possible; None if there is none."""
    if head.owner is not None or head.status == "ended" or stored.created.get("launch"):
        return None
    return next((one for one in await engines(store.journal) if one.takes(head)), None)


def lets_go_on(kind: str, stored: StoredRun) -> bool:
    """Return whether an engine resumes a run for a request; a paused run waits until it is unpaused."""
    from orchestrator.runtime.service.answer import DECISIONS
    from orchestrator.runtime.service.resume_plan import paused

    return kind in {"cancel", "resume"} or (kind in DECISIONS and not paused(stored))


def resumption(store: OpenStore, stored: StoredRun) -> str:
    """Return the command that resumes a run, with placeholders if another program started it."""
    if (group := GROUPS.get(str(stored.created.get("graph")))) is not None:
        from orchestrator.runtime.service import program

        again = ("--again",) if program.programs_question(stored) else ()
        return store.command("resume", stored.run_id, *again, group=group)
    if stored.created.get("graph") == APPROVAL:
        return of_project(store)
    if stored.created.get("graph") == EVALUATION:
        return of_evaluation(store)
    model = () if (stored.created.get("launch") or {}).get("model") else ("--model", "SPEC")
    return store.command("resume", stored.run_id, *model)


async def root_story(store: OpenStore, head: RunHead, story: Story) -> Story:
    """Return the history of the run whose resumption resumes this run: its root while no run above has ended."""
    from orchestrator.runtime.service.descendant import open_ancestors

    above = await open_ancestors(store.journal, head)
    return await store.story(above[0]) if above else story


def of_project(store: OpenStore) -> str:
    """Return the command that shows the state of an approval run's project and the possible actions."""
    place = store.journal.address
    project = ("--project", str(place.parent.parent)) if isinstance(place, Path) else ()
    return words("approval", "status", *project)


def of_evaluation(store: OpenStore) -> str:
    """Return the command that continues an evaluation; its records have neither the file nor the agent."""
    journal = ("--journal", str(store.given)) if store.given is not None else ()
    return words("eval", "FILE", "--agent", "MODULE:FUNCTION", *journal)


def refuse_other(store: OpenStore, head: RunHead, *graphs: str) -> None:
    """Raise ConfigError for a run of another graph than these; it names the command for that graph."""
    if head.graph in graphs:
        return
    refuse_approval(store, head)
    there = {
        CHECKPOINT: "`CheckpointManager.load_state_machine`",
        EVALUATION: f"`{of_evaluation(store)}`",
    }
    for graph, group in {**GROUPS, LLM_LOOP: "runs"}.items():
        there[graph] = f"`{store.command('resume', head.run_id, group=group)}`"
    known = there.get(head.graph, "only the program that started it")
    raise ConfigError(f"run {head.run_id} belongs to graph {shown(head.graph)!r}: {known} resumes it")


def refuse_approval(store: OpenStore, head: RunHead) -> None:
    """Raise ConfigError for a run that only `orchestrator approval` may change: it has state outside its records."""
    if head.graph == APPROVAL:
        raise ConfigError(
            f"run {head.run_id} belongs to graph {head.graph!r}: `{of_project(store)}` shows the possible actions"
        )


def named(engine: EngineInfo) -> str:
    """Return the name of an engine for a person."""
    return f"engine {shown(engine.name)} ({engine.run_id})"


async def going_on(store: OpenStore, head: RunHead) -> str:
    """Return when a run without an owner is resumed."""
    from orchestrator.runtime.service.resume_plan import paused

    story = await store.story(head)
    engine = await engine_of(store, head, story)
    if engine is None or paused(story):
        return f"`{resumption(store, story)}` resumes it"
    return f"{named(engine)} resumes it automatically"
