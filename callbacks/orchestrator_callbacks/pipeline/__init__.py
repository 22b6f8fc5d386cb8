"""The hooks of the pipeline, by kind, and what they share."""
