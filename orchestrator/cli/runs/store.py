"""The journal of a command: opened only if it exists; each fault raises an error with one sentence.

The settings, and what reads the records of a run, are imported when they are used: most of the time of `runs list` and
`runs show` is that of imports.
"""

from __future__ import annotations

import asyncio
import difflib
import math
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.cli import keyboard
from orchestrator.cli.output import say, shown
from orchestrator.cli.runs.phrase import words
from orchestrator.errors import ConfigError, RunError, RunUnknown
from orchestrator.journal.address import DEFAULT_JOURNAL, Address, address_of
from orchestrator.journal.difference import heads
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.journal.sqlite.place import refuse_orphaned_log
from orchestrator.kernel.journal import RunHead

if TYPE_CHECKING:
    from orchestrator.runtime.runs.runs import Runs
    from orchestrator.runtime.runs.story import Story

T = TypeVar("T")

SHORTEST = 4
"""Least characters of a run id that may replace the whole id."""
WAITS_FOR_AGENT = "waiting for its agent"
"""State of a parked run that has its answer, while no live engine has its agent with this version of the graph."""
_VARIABLE = "ORCHESTRATOR_JOURNAL"
_NAMED = 3
"""Most runs that an error names."""


@dataclass(slots=True)
class OpenStore:
    """An open journal."""

    journal: StoredJournal
    given: Address | None
    """The journal as the command line names it, for the commands that are printed."""

    @property
    def runs(self) -> Runs:
        """The runs of the journal."""
        from orchestrator.runtime.runs.runs import Runs

        return Runs(self.journal)

    async def heads(self) -> tuple[list[RunHead], str]:
        """Return every run that can be trusted, oldest first, and a sentence about the others, or ""."""
        return await heads(self.journal)

    async def run(self, name: str) -> RunHead:
        """Return the run of this id, or the only one whose id starts with it. Raises ConfigError."""
        try:
            return await self.journal.head(name)
        except RunUnknown:
            found, _ = await self.heads()
        fits = [head for head in found if head.run_id.startswith(name)] if len(name) >= SHORTEST else []
        if len(fits) == 1:
            return fits[0]
        if fits:
            some = ", ".join(head.run_id for head in fits[:_NAMED]) + (", …" if len(fits) > _NAMED else "")
            raise ConfigError(
                f"{shown(name)!r} begins {len(fits)} run ids: {some}; give more of its characters"
            )
        raise ConfigError(self._unknown(name, found))

    def _unknown(self, name: str, found: list[RunHead]) -> str:
        where = f"no run {shown(name, 80)!r} in {self.journal.address}"
        if not found:
            return f"{where}: no run was recorded there yet"
        known = [head.run_id for head in found]
        close = difflib.get_close_matches(name, known, _NAMED) or [
            one for one in known if len(name) > 1 and one.startswith(name)
        ]
        hint = f"like it: {', '.join(close[:_NAMED])}; " if close else ""
        return f"{where}; {hint}`{self.command('list')}` shows what is there"

    async def story(self, head: RunHead) -> Story:
        """Read the records of a run. Raises JournalError."""
        from orchestrator.runtime.runs.story import Story

        return Story.of(head.run_id, await self.journal.load(head.run_id))

    def command(self, name: str, *rest: str, group: str = "runs") -> str:
        """Return a command of `runs`, or of another group, as it can be typed, with the journal if one was given."""
        journal = ("--journal", str(self.given)) if self.given is not None else ()
        return words(group, name, *rest, *journal)


def journal_file(given: Address | None) -> Address:
    """Return the configured address of the journal. Raises ConfigError when the settings cannot be read.

    Most folders have no other setting. Then the settings are not imported: they take a quarter of `runs list`.
    """
    from orchestrator.cli.trust.consent import DEFAULT_FILE, project_settings

    place = given
    variables = {name for name in os.environ if name.upper().startswith("ORCHESTRATOR_")}
    if place is None and variables <= {_VARIABLE} and not Path(DEFAULT_FILE).exists():
        with suppress(ConfigError):  # the settings report it
            place = address_of(os.environ[_VARIABLE]) if variables else DEFAULT_JOURNAL
    if place is None:
        place = project_settings().journal
    return place.absolute() if isinstance(place, Path) else place


def existing(given: Address | None) -> Address:
    """Return the journal's file or address; nothing is created.

    Raises ConfigError if the file does not exist, and Corrupt if only its log exists.
    """
    path = journal_file(given)
    if isinstance(path, Path) and not path.is_file():
        refuse_orphaned_log(path)
        raise ConfigError(
            f"there is no journal {path}: name another with --journal or ORCHESTRATOR_JOURNAL, or run something first"
        )
    return path


def at_journal(
    given: Address | None, work: Callable[[OpenStore], Awaitable[T]], *, only_reads: bool = False
) -> T:
    """Call a function with a journal that exists. Its errors are raised as ConfigError: exit code 2.

    With `only_reads` a command works without write access. Any other command works on a full disk with the reserve of
    the journal.
    """
    path = existing(given)

    async def opened() -> T:
        async with journal_at(path, only_reads=only_reads, create=False, operator=not only_reads) as journal:
            return await work(OpenStore(journal, given))

    try:
        return asyncio.run(opened())
    except (ConfigError, RunError) as error:
        raise ConfigError(shown(str(error), 4_000)) from error


def head_json(head: RunHead) -> dict[str, Any]:
    """Return the figures of a store about a run as plain data."""
    names = ("run_id", "graph", "fingerprint", "status", "reason", "owner", "seq", "epoch", "created_at")
    more = (
        "updated_at",
        "parent_run_id",
        "conversation_id",
        "stuck_claims",
        "lease_expires_in",
        "expired_owner",
    )
    new = ("agent", "agent_version", "tags", "state_since", "waiting", "tokens", "cost_micros", "currency")
    return {name: getattr(head, name) for name in (*names, *more, *new)}


def position_of(head: RunHead, story: Story) -> str:
    """Return the position of a run in a few words."""
    if head.status == "ended" and story.ended is not None:
        outcome = story.ended.get("outcome", "?")
        reason = ", ".join(filter(None, (head.reason, story.error.kind if story.error else "")))
        return f"ended: {outcome}" if reason in ("", "none") else f"ended: {outcome} ({reason})"
    reason = head_reason(head)
    return head.status if reason == "-" else f"{head.status} ({reason})"


def head_reason(head: RunHead) -> str:
    """Return why a run parked or ended, or that it is claimed again and again."""
    if not head.reason and head.stuck_claims > 1:
        return f"claimed {head.stuck_claims} times without progress"
    return head.reason or "-"


def holder(head: RunHead) -> str:
    """Return the owner of a run, with the end of its lease if that is near or past; empty without an owner."""
    if head.expired_owner is not None:
        return f"no process (the lease of {head.expired_owner} has expired, and that process still exists)"
    if head.lease_expires_in is None:
        return head.owner or ""
    return f"{head.owner} (no heartbeat; the lease expires in {math.ceil(head.lease_expires_in)} s)"


def confirm_take_over(head: RunHead, *, take_over: bool) -> None:
    """Ask before a run is taken from a process that still exists although its lease has expired.

    Raises ConfigError if the person does not agree, or without a terminal and without `take_over`.
    """
    if head.expired_owner is None or take_over:
        return
    why = (
        f"run {head.run_id} belongs to {shown(head.expired_owner)}, whose lease has expired although its process still "
        "exists: it is stopped or hangs, and a call of the run may still be under way there"
    )
    if not keyboard.present():
        raise ConfigError(f"{why}; end that process, then resume the run, or give --take-over")
    say(f"{why}.\nTake the run over? [y/N]")
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise ConfigError("nothing was resumed")


def owned_elsewhere(head: RunHead, look: str = "") -> ConfigError:
    """Return the error for a resume of a run that another process owns; `look` is a command that shows the run."""
    then = "that process continues it"
    if head.lease_expires_in is not None:
        then = "that process is stopped or hangs; resume the run when its lease has expired"
    return ConfigError(
        f"run {head.run_id} is held by {shown(holder(head))}: {then}" + (f"; `{look}`" if look else "")
    )
