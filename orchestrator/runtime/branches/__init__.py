"""Branches of a state, and the runs of a host's own machine."""
