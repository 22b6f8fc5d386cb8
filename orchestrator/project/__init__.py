"""Make a project from templates, and add states, machines, tools and guards to it.

`files/project/` is the project: a path may contain PACKAGE. `files/addition/` has the files that an addition writes.
In both, `{{field}}` is a placeholder. Changes of existing files are edits of their source (`addition.Source`) at the
places that the syntax tree shows, so that a project needs no marks for them and keeps its comments and its layout. The
alternative, a table in a file of our own from which the code is generated, would hide the graph from its reader.
"""
