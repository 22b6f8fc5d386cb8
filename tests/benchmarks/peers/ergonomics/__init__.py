"""The same agent written with four libraries, run alike, and counted."""
