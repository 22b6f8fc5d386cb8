"""Hooks of the ralph loop."""
