"""The ralph loop: plan, execute and review the tasks of tasks.md and progress.md."""
