"""Seed 000: plan, validate, implement, judge; back with feedback until it is good enough or a limit is reached."""
