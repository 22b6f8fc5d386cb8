"""Tools mode: the model calls tools until it answers without a call."""
