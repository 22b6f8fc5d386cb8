"""Code mode: the model writes code and a REPL runs it, until the model gives a final answer."""
