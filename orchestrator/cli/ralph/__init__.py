"""The commands of the group `ralph`."""

from __future__ import annotations

from orchestrator.cli.exit import EPILOG
from orchestrator.cli.lazy_group import CommandEntry, LazyGroup

group = LazyGroup(
    {
        "run": CommandEntry("ralph.run:run", "Run the loop and show its tasks as they change.", EPILOG),
        "doctor": CommandEntry(
            "ralph.agents:doctor", "Show which coding agents are installed and usable.", EPILOG
        ),
        "status": CommandEntry(
            "ralph.session:status", "Show the state of a run: last and next action, questions, tasks."
        ),
        "resume": CommandEntry(
            "ralph.run:resume", "Resume a run as it was started, or print the result of its end.", EPILOG
        ),
        "answer": CommandEntry(
            "ralph.answer:answer", "Answer a question of a run; without an answer, list the questions."
        ),
        "tell": CommandEntry("ralph.session:tell", "Send a message to all agents of a run."),
        "tasks": CommandEntry(
            "ralph.session:tasks", "Print the tasks of a run, a session, or a list of tasks."
        ),
    },
    help="Plan, execute and review tasks in tasks.md.",
)
