"""The hooks of a team by kind, and those of its segments."""
