"""The directory of a session of the ralph loop: `.ralph-sessions/<yyMMdd-HHmmss>/`.

    plan.md                       goal, approach, verification; written by the planner
    plan.questions[.<name>].md    questions and answers by cycle
    tasks.md                      the tasks
    progress.md                   the state of each task: the truth for that
    tasks.<ID>-report[-r<N>].md   the work of an attempt and its review; never overwritten
    progress.review<N>.md         checks of the whole
    <SESSION>.instructions.md     instructions of people for the whole session
    transitions.jsonl             log of transitions

People, agents and the loop write here concurrently. So the loop never writes a file from memory: it changes one thing
in the text that it read, and only if the file still has the same SHA-256. A change from outside is refused and kept.
Between that check and the rename of the new file another program could still write; a program without locks cannot
close that gap.
"""
