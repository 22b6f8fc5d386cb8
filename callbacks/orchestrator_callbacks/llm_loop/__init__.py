"""The hooks of the LLM loop: `enter`, `leave`, `before`, `after`, and the work that they call by name."""
