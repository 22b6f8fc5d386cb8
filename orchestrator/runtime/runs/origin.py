"""What a new run can start from: the input of a stored run, or its conversation after a turn. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.errors import ConfigError
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.rlm.code_mode import CODE_MODE
from orchestrator.machines.rlm.tools_mode import TOOLS_MODE
from orchestrator.machines.team.graph import TEAM
from orchestrator.runtime.llm_loop.run_record import history_of, loop_codec

AGENTS: Final = frozenset((LLM_LOOP.name, TEAM.name))
"""Graphs whose runs have messages as their input."""
_MODES: Final = frozenset((CODE_MODE.name, TOOLS_MODE.name))
REPEATED: Final = AGENTS | _MODES | {PIPELINE.name}
"""Graphs whose records have the whole input of a run."""
_INSTRUCTIONS: Final = frozenset(("system", "developer"))


@dataclass(frozen=True, slots=True)
class Origin:
    """The starting point of a fork."""

    stored: StoredRun
    """The run after that turn."""
    turn: int
    messages: Sequence[Message]

    @property
    def is_answered(self) -> bool:
        """Whether the last message is the answer of the model, so that a fork needs another message."""
        return not self.messages or self.messages[-1].role == "assistant"


def cut(run_id: str, records: Iterable[Record], turn: int | None) -> Origin:
    """Return a run of `llm_loop` after a turn, with an answer to each call.

    Args:
        run_id: Id of the run.
        records: Its records from the first.
        turn: Number of an answer of the model; 0 is before the first, None is the end.

    Raises:
        ConfigError: The run does not have the turn.
    """
    stored, answered = StoredRun(run_id), 0
    whole = True
    for record in records:
        if record.kind == "answer":
            answered = int(record.body["iteration"])
            whole = whole and (turn is None or answered <= turn)
        if whole:
            stored.fold(record.kind, record.body)
    if turn is not None and not 0 <= turn <= answered:
        turns = f"{answered:,} turn" if answered == 1 else f"{answered:,} turns"
        raise ConfigError(f"run {run_id} has {turns}: give a turn from 0 to {answered}")
    return Origin(stored, answered if turn is None else turn, history_of(stored, loop_codec()))


def recorded_input(run_id: str, records: Sequence[Record]) -> Any:
    """Return the input that started a run, in the form of `LocalEngine.deposit`.

    The system message is left out: a new run has the instructions that its agent has then. The records do not
    distinguish it from a system message of the caller.

    Raises:
        ConfigError: The records do not have the whole input, because its graph is none of REPEATED.
    """
    stored = StoredRun.of(run_id, records[:1])
    graph = str(stored.created.get("graph", ""))
    if graph in AGENTS:
        return without_instructions(stored.messages)
    if graph == PIPELINE.name:
        return stored.context["spec"]
    if graph in _MODES:
        material = stored.created.get("material")
        return {"prompt": stored.context["prompt"]} | ({} if material is None else {"context": material})
    raise ConfigError(
        f"run {run_id} belongs to graph {graph!r}, whose records do not have the whole input; start it in its "
        "own program"
    )


def without_instructions(messages: Sequence[Any]) -> list[Any]:
    """Return messages in OpenAI form without the system message before them."""
    first = 0
    while first < len(messages) and messages[first].get("role") in _INSTRUCTIONS:
        first += 1
    return list(messages[first:])
