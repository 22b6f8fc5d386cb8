"""Hooks of the machine `call`."""
