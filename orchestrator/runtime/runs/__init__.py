"""The runs of a journal: list, read, answer and control them without an agent."""
