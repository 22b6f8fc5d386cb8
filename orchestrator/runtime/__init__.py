"""Composition roots, one file a graph: table, guards and hooks meet here and only here."""
