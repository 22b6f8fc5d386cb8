"""Engines: who calls `drive`, how many runs at once, and what operators may ask of the process."""
