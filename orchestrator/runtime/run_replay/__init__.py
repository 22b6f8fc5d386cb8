"""Execute a recorded run again on its recorded answers and results, and compare its transitions.

`recording` reads what the model and the tools gave, `doubles` gives it again, `replay` runs and compares.
"""
