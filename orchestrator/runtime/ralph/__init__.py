"""Composition of the Ralph loop, and its session folder."""
