"""Common services of all machines: start, resume, restore and control runs."""
