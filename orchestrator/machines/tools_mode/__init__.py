"""Tools mode of seed 004: the model calls tools until it answers without a call."""
