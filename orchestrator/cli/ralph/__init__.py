"""The commands of the group `ralph`, a module each."""
