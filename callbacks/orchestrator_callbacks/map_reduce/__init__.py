"""Hooks of the machine `map_reduce`."""
