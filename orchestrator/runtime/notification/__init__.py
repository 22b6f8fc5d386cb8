"""Notifications of people: which questions are open, how they are delivered, and by whom."""
