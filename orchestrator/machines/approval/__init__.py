"""Seed 001: nothing is written without approval, and everything that is written can be undone."""
