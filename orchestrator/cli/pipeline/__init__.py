"""The commands of the group `pipeline`."""

from __future__ import annotations

from orchestrator.cli.exit import EPILOG
from orchestrator.cli.lazy_group import CommandEntry, LazyGroup

group = LazyGroup(
    {
        "run": CommandEntry(
            "pipeline.run:run", "Run a pipeline and print its output and its metrics.", EPILOG
        ),
        "report": CommandEntry("pipeline.run:report", "Print the metrics of a run."),
        "resume": CommandEntry(
            "pipeline.run:resume", "Resume a run as it was started, or print the result of its end.", EPILOG
        ),
    },
    help="Plan, validate, implement, judge; show metrics.",
)
