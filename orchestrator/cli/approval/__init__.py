"""The commands of the group `approval`."""

from __future__ import annotations

from orchestrator.cli.exit import table
from orchestrator.cli.lazy_group import CommandEntry, LazyGroup

_EXIT_CODES = (
    "Exit codes: 2 is also a refusal, which changed nothing; 3 a plan that is paused.\n\n\b\n" + table()
)

group = LazyGroup(
    {
        "submit": CommandEntry(
            "approval.command:submit", "Submit a request for which a plan is made.", _EXIT_CODES
        ),
        "show": CommandEntry(
            "approval.command:show", "Show the plan: goal, steps, files, commands, next actions.", _EXIT_CODES
        ),
        "diff": CommandEntry(
            "approval.command:diff", "Show the changes that the plan would make, line by line.", _EXIT_CODES
        ),
        "approve": CommandEntry(
            "approval.command:approve", "Approve the plan as it was shown, or some of its steps.", _EXIT_CODES
        ),
        "reject": CommandEntry("approval.command:reject", "Reject the plan: it is discarded.", _EXIT_CODES),
        "changes": CommandEntry(
            "approval.command:changes", "Request changes: the planner makes another version.", _EXIT_CODES
        ),
        "execute": CommandEntry(
            "approval.command:execute", "Carry out the approved plan, step by step.", _EXIT_CODES
        ),
        "wait": CommandEntry(
            "approval.command:wait", "Wait for an answer of another process, and carry it out.", _EXIT_CODES
        ),
        "pause": CommandEntry(
            "approval.command:pause", "Pause a plan in another process, after its current step.", _EXIT_CODES
        ),
        "resume": CommandEntry("approval.command:resume", "Resume a paused plan.", _EXIT_CODES),
        "cancel": CommandEntry(
            "approval.command:cancel", "Cancel the plan and restore every file.", _EXIT_CODES
        ),
        "rollback": CommandEntry(
            "approval.command:rollback", "Restore every file after a plan has failed.", _EXIT_CODES
        ),
        "acknowledge": CommandEntry(
            "approval.command:acknowledge",
            "Confirm an error that was shown; finished steps are kept.",
            _EXIT_CODES,
        ),
        "retry": CommandEntry(
            "approval.command:retry", "Make a new plan for the request that failed.", _EXIT_CODES
        ),
        "status": CommandEntry(
            "approval.command:status", "Show the state of the project and the next actions.", _EXIT_CODES
        ),
    },
    help="Show, approve, carry out and undo plans for a folder.",
)
