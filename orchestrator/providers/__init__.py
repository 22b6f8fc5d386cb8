"""Models: doubles for tests, replay of recordings, vendors behind extras. Nothing is imported here."""
