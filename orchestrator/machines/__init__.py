"""What is allowed: one folder a graph, its model (states, events, limits, context) and its table. Data only."""
