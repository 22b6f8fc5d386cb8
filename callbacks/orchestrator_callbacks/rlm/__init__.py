"""What code mode and tools mode have in common beside their sources: what a run lends to those below it."""
