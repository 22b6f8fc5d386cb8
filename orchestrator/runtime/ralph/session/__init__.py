"""The folder of a session of the ralph loop: `.ralph-sessions/<yyMMdd-HHmmss>/`."""
