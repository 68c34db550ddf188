"""One module per command: it parses, calls one function and prints.

A part of a command with options of its own has the name of the command in front: `run_claims` is `gpas run claims`.
"""
