"""Composition of the pipeline."""
