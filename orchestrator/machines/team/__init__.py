"""The team machine: agents that hand one conversation over to each other."""
