"""Draw the runs that a run started, as a tree."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.cli.output import shown
from orchestrator.cli.runs.position import head_reason, holder
from orchestrator.runtime.runs.listing import RunTree


def drawn(tree: RunTree) -> Iterator[str]:
    """Draw the child runs of a run, a line for each."""
    ahead = _descendants(tree, "  ")
    while ahead:
        branch, lead, rest = ahead.pop()
        head = branch.head
        reason = head_reason(head)
        why = f" ({reason})" if reason not in ("-", "none") else ""
        held = f", held by {shown(holder(head))}" if head.owner else ""
        yield f"{lead}{shown(head.run_id)}  {shown(head.graph)}  {head.status}{shown(why)}{held}"
        ahead += _descendants(branch, rest)


def _descendants(branch: RunTree, lead: str) -> list[tuple[RunTree, str, str]]:
    """Return (child, prefix of its line, prefix of the lines below it), last first."""
    found = [(child, f"{lead}├─ ", f"{lead}│  ") for child in branch.children[:-1]]
    found += [(child, f"{lead}└─ ", f"{lead}   ") for child in branch.children[-1:]]
    return found[::-1]
