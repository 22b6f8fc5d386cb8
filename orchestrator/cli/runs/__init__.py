"""The commands of the group `runs`."""

from __future__ import annotations

from orchestrator.cli.lazy_group import CommandEntry, LazyGroup

group = LazyGroup(
    {
        # reading
        "list": CommandEntry("runs.listing:list_runs", "List runs; --json prints one object a line."),
        "show": CommandEntry(
            "runs.show:show", "Show a run: state, questions, path, times, tokens, decisions."
        ),
        "events": CommandEntry("runs.events:events", "Print the records of a run, one a line."),
        "export": CommandEntry("runs.export:export", "Print a run as JSON, without the content of messages."),
        "replay": CommandEntry(
            "runs.replay:replay", "Execute a run again on its recorded answers and results."
        ),
        "compare": CommandEntry(
            "runs.compare:compare", "Show two runs, or a run and its fork, side by side."
        ),
        # requests
        "approve": CommandEntry("runs.request:approve", "Approve a call, perhaps with other arguments."),
        "reject": CommandEntry("runs.request:reject", "Reject a call: the model reads the reason."),
        "respond": CommandEntry(
            "runs.request:respond", "Give the result of a call yourself; the tool does not run."
        ),
        "cancel": CommandEntry(
            "runs.request:cancel", "Ask a run to stop, and wait up to 2 s for it; or several runs."
        ),
        "pause": CommandEntry("runs.request:pause", "Ask a run to park; `runs resume` continues it."),
        # resuming
        "resume": CommandEntry(
            "runs.resume:resume", "Resume a run as it was started; without RUN, list open runs."
        ),
        "fork": CommandEntry(
            "runs.resume:fork", "Start a new run from the conversation of a run after a turn."
        ),
        "rollback": CommandEntry("runs.care:rollback", "Undo the file changes of a run, newest first."),
        "migrate": CommandEntry("runs.care:migrate", "Migrate open runs of older versions of a graph."),
        # maintenance
        "prune": CommandEntry("runs.care:prune", "Remove ended runs that meet every condition given."),
        "erase": CommandEntry("runs.care:erase", "Remove one run permanently, from file and log."),
        "backup": CommandEntry(
            "runs.care:backup", "Write a checked copy of the journal; runs continue meanwhile."
        ),
        "restore": CommandEntry(
            "runs.care:restore", "Restore a journal from a backup; it must not exist yet."
        ),
    },
    help="List, show, answer and resume recorded runs.",
)
