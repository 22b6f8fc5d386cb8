"""The approval machine: nothing is written without approval, and every write can be undone."""
