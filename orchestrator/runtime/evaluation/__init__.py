"""Evaluation sets: cases with expectations, run against an agent, resumable through its journal."""
