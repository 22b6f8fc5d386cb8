"""`orchestrator chat`: talk to an agent. Each prompt is one durable run of one conversation.

prompt_toolkit reads the lines of a person, edits them and recalls earlier prompts. The answer is printed as it comes. A
question of the run is asked below it, as in `orchestrator run`. Ctrl-C cancels the run at work, not the chat.
"""
