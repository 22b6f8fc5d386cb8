"""Files: atomic writes, detection of changes, undo, and paths that stay below a folder."""
