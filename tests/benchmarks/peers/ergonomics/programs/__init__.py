"""The programs, one file for each library."""
