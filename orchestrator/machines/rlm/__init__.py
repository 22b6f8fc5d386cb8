"""What code mode and tools mode have in common: the context of a run, its limits, its policies, how it ends."""
