"""The command line.

    app            the `gpas` command: it imports the module of the command that is asked for
    commands/      one module per command: it parses, calls one function and prints
    views/         what commands print: text for a terminal, and JSON; a view imports no command
    schemas/       the types of the JSON that commands print

What several commands share:

    console        text and JSON output, and questions; `literal_console` prints verbatim
    selection      the project of a command, and the grids and cells that its words choose
    options        common arguments and options, with their completion in the shell
    cell_filter    --state, --sort and --limit
    run_options    the options of commands that run cells, and `outcome` their end: JSON, --notify, the exit code
    planning       what a command would run
    shrunk         --shrink
    drawing        where figures go, and `paper_figures`, those of the papers
    working        what a command shows of its own work while it computes

Modules import nothing heavy at the top, so that `gpas --help` is fast.
"""
