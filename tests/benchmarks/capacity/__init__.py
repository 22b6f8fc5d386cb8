"""A model of a fleet: the workers and the PostgreSQL servers that a load needs."""
