"""Composition of the ralph loop, and its session folder."""
