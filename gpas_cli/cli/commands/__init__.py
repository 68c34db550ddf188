"""One module per command: it parses, calls one function and prints.

The module of a sub-command begins with the name of its command: `run_claims` is `gpas run claims`.
"""
