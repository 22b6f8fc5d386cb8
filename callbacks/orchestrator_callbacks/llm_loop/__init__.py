"""The hooks of the LLM loop: `enter`, `leave`, `before`, `after`; beside them the work that they call by name."""
