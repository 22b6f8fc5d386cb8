"""Bodies of the commands of the group `rlm`."""
