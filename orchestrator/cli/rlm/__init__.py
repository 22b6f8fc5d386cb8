"""The commands of the group `rlm`."""

from __future__ import annotations

from orchestrator.cli.exit import EPILOG
from orchestrator.cli.lazy_group import CommandEntry, LazyGroup

group = LazyGroup(
    {
        "run": CommandEntry("rlm.run:run", "Answer a prompt about a file of any length.", EPILOG),
        "resume": CommandEntry(
            "rlm.run:resume", "Resume a run as it was started, or print the result of its end.", EPILOG
        ),
        "isolation": CommandEntry(
            "rlm.isolation:isolation", "Show how code of models is isolated on this machine."
        ),
    },
    help="Answer questions about long texts with code or tools.",
)
