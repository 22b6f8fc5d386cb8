"""The hooks of the pipeline by kind, and their common helpers."""
