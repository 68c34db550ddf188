"""The command line.

    app            the `gpas` command: it imports the module of the command that is asked for
    commands/      one module per command: it parses, calls one function and prints
    views/         what commands print: text for a terminal, and JSON; a view imports no command

What several commands share:

    console        text and JSON output, and questions
    selection      the project of a command, the grids and cells that its words choose; --state, --sort and --limit
    options        common arguments and options, with their completion in the shell
    running        the options of commands that run cells, the plan, --shrink, and their end: JSON, --notify, exit code
    drawing        where figures go, and the figures of the papers
    working        what a command shows of its own work while it computes

Modules import nothing heavy at the top, so that `gpas --help` is fast.
"""
