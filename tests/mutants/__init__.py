"""Changes the source in small ways, one at a time, and reports the changes that no test notices (`make mutants`)."""
