"""The ralph loop of seed 002: plan, execute, review over tasks.md and progress.md."""
