"""Composition of a team."""
