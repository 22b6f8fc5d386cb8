"""The contestants: each does the script's work as its own documentation builds it. Run as `-m`, each in a process."""
