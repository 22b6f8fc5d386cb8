"""Code mode of seed 004: the model writes code, a REPL runs it, until the model gives an answer."""
