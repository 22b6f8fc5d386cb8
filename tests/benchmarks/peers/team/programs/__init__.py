"""One program for each library."""
