"""Composition roots, one folder per machine: only here graph, guards and hooks are combined."""
