"""One module per command: it parses, calls one function and prints.

A part of a command with options of its own has the name of the command in front: `table_paper` is `gpas table --paper`.
"""
