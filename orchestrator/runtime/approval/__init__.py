"""The runtime of approval on a project folder."""
