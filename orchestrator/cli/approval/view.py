"""`show` and `diff`: the plan as a person reads it before its approval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.cli.approval import difference
from orchestrator.cli.approval import status as status_view
from orchestrator.cli.approval.limit import limits_of
from orchestrator.cli.approval.project import ApprovalOptions, Command, run_command
from orchestrator.cli.output import coloured, say, visible
from orchestrator.errors import ConfigError
from orchestrator.machines.approval.plan import ApprovalPlan
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.status import Status
from orchestrator.runtime.approval.workspace import FileDiff, preview


def show(options: ApprovalOptions, version: int | None) -> int:
    """Show the plan: goal, steps, files, commands, digest. It does not count as a view of the changes: `diff` does."""

    async def work(one: Approval) -> Status:
        return await one.status() if version is None else await one.show(version)

    def print_status(found: Status) -> None:
        for line in plan_lines(found):
            say(line)
        for line in status_view.action_lines(found.actions, options.given):
            say(line)

    return run_command(options, Command(work=work, elsewhere=Approval.look, show=print_status))


def diff(options: ApprovalOptions, version: int | None) -> int:
    """Show the changes of the plan, line by line: in colour on a terminal."""
    seen = _Seen(options.root)

    async def work(one: Approval) -> Status:
        return await seen.look(await one.show(version))

    async def elsewhere(root: Path) -> Status:
        return await seen.look(await Approval.look(root))

    return run_command(
        options, Command(work=work, elsewhere=elsewhere, show=seen.print_status, data=seen.data)
    )


@dataclass(slots=True)
class _Seen:
    """The differences of one plan."""

    root: Path
    files: tuple[FileDiff, ...] = field(default=())

    async def look(self, found: Status) -> Status:
        """Create the differences of the plan. Raises ConfigError if there is no plan."""
        limits = limits_of(found.launch.get("limits") or {})
        self.files = await preview(the_plan(found), self.root, limits.caps, limits.file_seconds)
        return found

    def print_status(self, found: Status) -> None:
        """Print the differences for a person."""
        made = the_plan(found)
        say(f"plan {visible(made.id)} version {made.version}: {status_view.one_line(made.goal)}")
        titles = {step.id: step.title for step in made.steps}
        for line in difference.lines(self.files, titles, colour=coloured()):
            say(line)
        say(f"digest {made.digest}")

    def data(self, found: Status) -> dict[str, Any]:
        """Return the differences as data."""
        made = the_plan(found)
        files = [difference.plain(one) for one in self.files]
        return {"plan_id": made.id, "version": made.version, "digest": made.digest, "files": files}


def plan_lines(found: Status) -> Iterator[str]:
    """Return a whole plan as lines."""
    made = the_plan(found)
    yield from status_view.plan_lines(found)
    yield f"goal: {status_view.one_line(made.goal)}"
    if found.intent:
        said = f"{found.intent.get('kind')}, confidence {float(found.intent.get('confidence') or 0):.2f}"
        yield f"intent: {visible(said)}"
    for step in made.steps:
        about = [status_view.one_line(step.title)] if step.title else []
        about += [f"after {', '.join(map(visible, step.depends_on))}"] if step.depends_on else []
        about += [status_view.one_line(one) for one in step.constraints]
        if step.argv:
            about.append(f"a command: cannot be undone, at most {step.timeout:g} s")
        if about:
            yield f"  {visible(step.id)}: {'; '.join(about)}"
    if made.derived_from:
        yield f"derived from: {visible(made.derived_from)}"
    yield f"digest {made.digest}"


def the_plan(found: Status) -> ApprovalPlan:
    """Return the plan. Raises ConfigError if there is none."""
    if found.plan is not None:
        return found.plan
    known = ", ".join(str(version) for _, version in found.versions)
    raise ConfigError(
        f"there is no such version of the plan; there are {known}"
        if known
        else f"the project is {found.state.value}: there is no plan"
    )
