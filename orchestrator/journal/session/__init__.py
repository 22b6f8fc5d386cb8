"""The directory of a session of the ralph loop: `.ralph-sessions/<yyMMdd-HHmmss>/` (systems 6.2).

    plan.md                       goal, approach, verification; written by the planner
    plan.questions[.<what>].md    questions and answers by cycle
    tasks.md                      what is to be done
    progress.md                   how each task stands: the truth for that
    tasks.<ID>-report[-r<N>].md   what was done in an attempt, and its review; never written over
    progress.review<N>.md         checks of the whole
    <SESSION>.instructions.md     what people say for the whole session
    transitions.jsonl             the seed's log of transitions

People, agents and the loop write here at once. So the loop never writes a file from memory: it changes one thing in
what it read, and only where the file is still as it was read, by SHA-256. A change from outside is refused and left
alone. Between that look and the rename that puts the new file there another program could still write; nothing that a
program without locks does could close that gap.
"""
