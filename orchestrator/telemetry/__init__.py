"""Observers: facts become log lines and metrics. No layer below imports them; importing starts nothing."""
