"""The options of `worker` and `submit`, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import option as given
from orchestrator.engines.dispatcher import WorkerLimits

Dispatcher = Annotated[
    str, typer.Option(metavar="NAME", help="Who places runs on workers: dbos or procrastinate.")
]
_Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="What this worker is called: its own among those that live. Default: made up."
    ),
]
_Slots = Annotated[int, typer.Option(metavar="N", help="How many runs this worker executes at once.")]
_Grace = Annotated[float, typer.Option(metavar="SECONDS", help="How long runs get to end at a signal.")]
_Concurrency = Annotated[
    int, typer.Option(metavar="N", help="How many runs all workers execute at once; 0 is no limit.")
]
_TenantConcurrency = Annotated[
    int, typer.Option(metavar="N", help="How many of one tenant; 0 is any number.")
]
_Rate = Annotated[
    str | None, typer.Option(metavar="N/SECONDS", help="How many runs are started or resumed within a time.")
]
_MetricsPort = Annotated[
    int | None, typer.Option(metavar="N", help="Serve this worker's metrics here; 0 picks a free port.")
]


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The options of one worker, and the limits that all workers share."""

    name: _Name = None
    slots: _Slots = 16
    grace: _Grace = 30.0
    dispatcher: Dispatcher = "dbos"
    concurrency: _Concurrency = 0
    tenant_concurrency: _TenantConcurrency = 0
    rate: _Rate = None
    metrics_port: _MetricsPort = None

    @property
    def caps(self) -> WorkerLimits:
        """The limits that all workers share. Raises ConfigError."""
        number, period = rate_of(self.rate)
        return WorkerLimits(
            concurrency=self.concurrency,
            tenant_concurrency=self.tenant_concurrency,
            rate=number,
            period=period,
        )


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(FleetOptions):
    """The command line of `worker`."""

    agents: Annotated[
        tuple[str, ...],
        typer.Option(
            "--agent",
            metavar="[NAME=]MODULE:FUNCTION",
            help="A function that takes the journal and returns an Agent, a Pipeline or an Rlm. Repeatable.",
        ),
    ] = ()
    agent: given.AgentOptions
    limits: given.Limits = ()
    log: given.Log = None
    journal: given.Journal = None


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(given.JournalOptions):
    """The command line of `submit`."""

    prompt: given.Prompt
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="The agent that the run is for. Default: any with graph llm_loop."
        ),
    ] = None
    about: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The text that the prompt is about, for an agent that is an Rlm."),
    ] = None
    instructions: given.Instructions = None
    limits: given.Limits = ()
    run_id: given.NewRunId = None
    conversation: given.Conversation = None
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="The tenant of the run, for limits of each tenant.")
    ] = ""
    dispatcher: Dispatcher = "dbos"


def rate_of(text: str | None) -> tuple[int, float]:
    """Return number and seconds of `N/SECONDS`; None means no limit. Raises ConfigError."""
    from orchestrator.errors import ConfigError

    if text is None:
        return 0, 1.0
    number, slash, period = text.partition("/")
    try:
        return int(number), float(period if slash else "1")
    except ValueError:
        raise ConfigError(f"rate {text!r} is not of the form N/SECONDS, such as 5/2") from None
