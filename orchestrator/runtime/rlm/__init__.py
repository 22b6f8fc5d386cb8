"""Composition of code mode and tools mode."""
