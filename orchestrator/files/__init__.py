"""Atomic file writes, change detection, undo, and paths that stay below a folder."""
