"""The machine `call`: one call of a tool as a run of its own."""
