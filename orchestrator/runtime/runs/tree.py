"""Runs that a run started: the child runs of an agent's tools and of a machine, as a tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.kernel.journal import Journal, RunHead


@dataclass(slots=True)
class RunTree:
    """A run and its child runs, at any depth."""

    head: RunHead
    children: list[RunTree] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the tree as plain data."""
        names = ("run_id", "graph", "status", "reason", "owner")
        data = {name: getattr(self.head, name) for name in names}
        return data | {"children": [child.as_json() for child in self.children]}


async def read_tree(journal: Journal, root: RunHead) -> RunTree:
    """Return the child runs of a run. Each is listed once, even if the parents form a cycle."""
    tree = RunTree(root)
    seen = {root.run_id}
    ahead = [tree]
    while ahead:
        branch = ahead.pop()
        async for head in journal.runs(parent_run_id=branch.head.run_id):
            if head.run_id not in seen:
                seen.add(head.run_id)
                branch.children.append(RunTree(head))
        ahead += branch.children
    return tree
