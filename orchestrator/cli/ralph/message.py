"""`orchestrator ralph tell`: say something to a run, which it hears at its next boundary."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.cli.actor import actor_name
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json
from orchestrator.cli.ralph.find import run_named, send
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.errors import ConfigError
from orchestrator.journal.address import Address

_DELIVERY = {
    "inform": "all agents called from its next boundary on know it",
    "steer": "it is planned at its next boundary",
    "stop": "it ends as cancelled at its next boundary, after what is in flight",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """The command line of `ralph tell`."""

    run: str
    text: str
    kind: str
    by: str | None = None
    json: bool = False
    journal: Address | None = None


def send_message(said: MessageOptions) -> int:
    """Leave a message for a run. Raises ConfigError for one that has ended."""
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
