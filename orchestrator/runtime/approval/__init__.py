"""The approval graph at work on a project folder."""
