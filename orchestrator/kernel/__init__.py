"""State graphs and what drives them. Knows no model, no tool, no metric."""
