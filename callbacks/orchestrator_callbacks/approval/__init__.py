"""The hooks of approval by kind, and their common helpers."""
