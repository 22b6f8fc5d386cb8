"""`orchestrator runs cancel|pause` without a run: the request goes to each open run that meets the conditions."""

from __future__ import annotations

from typing import Any

from orchestrator.cli.exit import Exit
from orchestrator.cli.filter_option import FilterOptions
from orchestrator.cli.load import known_actor
from orchestrator.cli.option import RequestOrigin
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs.phrase import many
from orchestrator.cli.runs.request import RunPosition, poster
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.errors import ConfigError
from orchestrator.runtime.runs.runs import RunRequest


def refuse_conditions(several: FilterOptions) -> None:
    """Raise ConfigError for conditions beside the id of a run."""
    if any(value is not None for value in several.conditions.values()):
        raise ConfigError("give the id of a run, or conditions on runs, not both")


def post_to_several(kind: str, several: FilterOptions, asking: RequestOrigin, *, yes: bool) -> int:
    """Post a request to each run that meets the conditions; without `yes` only print the runs. Raises ConfigError."""
    by = known_actor(asking.by, "decides")

    async def work(store: OpenStore) -> int:
        post = poster(store.runs, kind)
        done = await post(by=by, why=asking.why or "", preview=not yes, **several.conditions)
        left = [
            one.run.run_id
            for one in done
            if kind == "cancel"
            and one.posted is not None
            and (await RunPosition.of(store, one.run.run_id)).left
        ]
        _print(kind, asking, done, left, yes=yes)
        return Exit.FAILED if left or any(one.refused for one in done) else Exit.COMPLETED

    return at_journal(asking.journal, work)


def _print(kind: str, asking: RequestOrigin, done: list[RunRequest], left: list[str], *, yes: bool) -> None:
    if asking.json:
        for one in done:
            say_json(_plain(one, left))
        return
    for one in done:
        say(_line(kind, one))
    if not yes:
        what = f"{many(len(done), 'run')} would receive a {kind}"
        say(f"{what}; --yes posts it" if done else "no open or parked run fits")
    elif not done:
        say("no open or parked run fits: nothing was posted")
    if left:
        say(
            f"not cancelled, because their owner is gone, until they are resumed: {', '.join(map(shown, left))}"
        )


def _line(kind: str, one: RunRequest) -> str:
    run_id = shown(one.run.run_id)
    if one.refused:
        return f"refused: {shown(one.refused, 300)}"
    if one.posted is not None:
        return f"{'was posted before, not again' if one.repeated else 'posted'}: {kind} for run {run_id}"
    agent = f", agent {shown(one.run.agent)}" if one.run.agent else ""
    return f"  {run_id}  {one.run.status}{agent}, {shown(one.run.state) or 'not started'}"


def _plain(one: RunRequest, left: list[str]) -> dict[str, Any]:
    return {
        "run_id": one.run.run_id,
        "status": one.run.status,
        "agent": one.run.agent,
        "request": None if one.posted is None else one.posted.id,
        "repeated": one.repeated,
        "refused": one.refused,
        "owner_gone": one.run.run_id in left,
    }
