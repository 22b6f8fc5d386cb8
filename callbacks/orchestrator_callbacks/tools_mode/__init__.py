"""The hooks of tools mode, and its event source."""
