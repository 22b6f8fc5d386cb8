"""Features of ours and of the libraries beside it, each tried by code: `make bench-features`."""
