"""The command line.

    app            the `gpas` command: it imports the module of the command that runs
    commands/      one module per command: it parses, calls one function and prints
    views/         what several commands print: text for a terminal, and JSON; a view imports no command

What several commands share:

    console        text and JSON output, questions, and progress
    selection      the project of a command, and the grids and cells that its words choose
    options        common arguments and options, with their completion in the shell

Modules import nothing heavy at the top, so that `gpas --help` is fast.
"""
