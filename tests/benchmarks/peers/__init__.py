"""The same work by ours and by the libraries that a user would pick instead, and what each of them can do."""
