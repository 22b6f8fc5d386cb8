"""`orchestrator ralph tell`: send a message to a run, which reads it at its next boundary."""

from __future__ import annotations

from orchestrator.cli.exit import Exit
from orchestrator.cli.load import actor_name
from orchestrator.cli.output import say, say_json
from orchestrator.cli.ralph.find import run_named, send
from orchestrator.cli.ralph_group import MessageOptions
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.errors import ConfigError

_DELIVERY = {
    "inform": "all agents called from its next boundary on know it",
    "steer": "it is planned at its next boundary",
    "stop": "it ends as cancelled at its next boundary, after what is in flight",
}


def send_message(said: MessageOptions) -> int:
    """Post a message for a run. Raises ConfigError for one that has ended."""
    if not said.text.strip():
        raise ConfigError("there is nothing to tell: give a text")

    async def work(store: OpenStore) -> str:
        found = await run_named(store, said.run)
        run_id = found.head.run_id
        if found.head.status == "ended":
            again = f"orchestrator ralph run TEXT --session {found.session}"
            raise ConfigError(f"run {run_id} has ended: `{again}` begins another one in its session")
        await send(store, run_id, said.kind, {"why": said.text}, actor_name(said.by))
        return run_id

    run_id = at_journal(said.journal, work)
    if said.json:
        say_json({"run_id": run_id, "kind": said.kind, "text": said.text})
    else:
        say(f"run {run_id} was told: {_DELIVERY[said.kind]}")
    return Exit.COMPLETED
