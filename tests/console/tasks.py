"""`python -m tests.console.tasks`: what a person does in the console, with clicks and keys, as the table of the guide.

`test_tasks.py` counts them in a browser, at 1440 and 390 px, light and dark.
"""

from __future__ import annotations

from typing import NamedTuple


class Effort(NamedTuple):
    """Clicks, and keys of which a typed text is a part."""

    clicks: int
    keys: int


TASKS = {
    "see why a run of the list failed: error, HTTP status, state, turn and attempt": Effort(1, 0),
    "… and read its message and what came before": Effort(3, 0),
    "reject two calls of the second page of the inbox for one reason": Effort(6, len("too dear")),
    "see which version of an agent fails, and list its failed runs": Effort(3, 0),
    "start a run with a message": Effort(2, len("Look, then pay.")),
    "run an ended run again": Effort(2, 0),
    "fork an ended run after a turn, and compare both": Effort(3, 0),
    "download an ended run as a case of an evaluation": Effort(1, 0),
    "find the runs with an HTTP status, and open the first": Effort(0, len("/503") + 3),
    "see the task of each run of the list": Effort(1, 0),
    "open a turn of 2,000": Effort(2, len("700")),
    "read the system prompt and the schema of a tool": Effort(3, 0),
    "compare the two newest runs": Effort(1, 4),
    "see the keys": Effort(0, 1),
    "walk a tree of three runs, and answer a question of the lowest from the root": Effort(
        5, len("too dear")
    ),
}
"""Task -> what it takes, from the page on which it begins."""


def table() -> str:
    """Return a row for each task."""
    rows = [f"| {task} | {effort.clicks} | {effort.keys} |" for task, effort in TASKS.items()]
    return "\n".join(["| task | clicks | keys |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    print(table(), end="")  # noqa: T201  what this program is for
