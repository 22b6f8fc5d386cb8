"""Composition of the LLM loop."""
