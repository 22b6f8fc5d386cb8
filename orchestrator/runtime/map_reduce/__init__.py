"""Composition of the machine `map_reduce`."""
