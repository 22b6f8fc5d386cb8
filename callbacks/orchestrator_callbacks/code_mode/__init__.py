"""The hooks of code mode, and its event source."""
