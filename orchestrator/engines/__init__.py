"""Engines: the processes that run agents, limit how many runs work at once, and accept operator commands."""
