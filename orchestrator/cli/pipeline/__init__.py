"""The commands of the group `pipeline`, a module each."""
