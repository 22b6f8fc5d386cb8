"""The hooks of approval, by kind, and what they share."""
