"""Bodies of the commands of the group `approval`, imported when they run."""
