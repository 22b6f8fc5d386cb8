"""Stores that implement `kernel.journal.Journal`."""
