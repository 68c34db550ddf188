"""The command line: one small module per command that parses, calls one function and prints.

Modules import nothing heavy at the top, so that `gpas --help` is fast.
"""
