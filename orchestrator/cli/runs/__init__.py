"""`orchestrator runs …`: look at recorded runs and act on them. One module for each command or small family.

`store` opens the journal and finds runs, `story` folds records into their display, the other modules are commands.
"""
