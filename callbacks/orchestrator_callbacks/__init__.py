"""Callbacks: the impure half of each graph. One folder a graph, one module a kind of hook."""
