"""The folder of a session of the Ralph loop: `.ralph-sessions/<yyMMdd-HHmmss>/`."""
