"""The options of `chat`, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from orchestrator.cli import option as given

_Agent = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="MODULE:FUNCTION",
        help="An agent of yours: a function of the journal, or of the journal and the observers.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """The command line of `chat`."""

    agent: given.AgentOptions
    made_by: _Agent = None
    limits: given.Limits = ()
    conversation: given.Conversation = None
    log: given.Log = None
    journal: given.Journal = None
