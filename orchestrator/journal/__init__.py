"""Stores that implement `kernel.record.Journal`."""
