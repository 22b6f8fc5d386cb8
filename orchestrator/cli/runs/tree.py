"""Runs that a run started: sub-agents, as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from orchestrator.cli.output import shown
from orchestrator.cli.runs.position import head_reason, holder
from orchestrator.kernel.journal import Journal, RunHead


@dataclass(slots=True)
class Branch:
    """A run and its child runs."""

    head: RunHead
    children: list[Branch] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the tree as plain data."""
        names = ("run_id", "graph", "status", "reason", "owner")
        data = {name: getattr(self.head, name) for name in names}
        return data | {"children": [child.as_json() for child in self.children]}


async def grown(journal: Journal, root: RunHead) -> Branch:
    """Return the child runs of a run. Each is listed once, even if the parents form a cycle."""
    tree = Branch(root)
    seen = {root.run_id}
    ahead = [tree]
    while ahead:
        branch = ahead.pop()
        async for head in journal.runs(parent_run_id=branch.head.run_id):
            if head.run_id not in seen:
                seen.add(head.run_id)
                branch.children.append(Branch(head))
        ahead += branch.children
    return tree


def drawn(tree: Branch) -> Iterator[str]:
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


def _descendants(branch: Branch, lead: str) -> list[tuple[Branch, str, str]]:
    """Return (child, prefix of its line, prefix of the lines below it), last first."""
    found = [(child, f"{lead}├─ ", f"{lead}│  ") for child in branch.children[:-1]]
    found += [(child, f"{lead}└─ ", f"{lead}   ") for child in branch.children[-1:]]
    return found[::-1]
