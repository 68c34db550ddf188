"""Tables, figures and provenance, made from database rows.

    query     the decisive result of each stage, attempts, curves, from the database
    labels    what a cell is called: in row titles, and in the papers
    papers    published numbers, as data
    checks    whether the tables and claims that experiments.yaml declares name what exists
    table_checks  whether the tables that grids declare can be made
    claims    statements about results, and what the results say about them
    external  networks that were not trained here, as rows below the cells
    stats     mean, spread, paired differences over seeds
    entry_status  the number that one entry contributes to a table, or why there is none
    table     entries + results -> `Table`: data, not text; `grouping` and `ranking` are parts of this
    notes     what a reader must know of a table: mixtures, missing seeds, what the deltas are
    side_by_side  several metrics of the same cells in one table
    paper_table  a table in the layout of a paper, with the cells of the grid that has them; `recipe_table` for settings
    printed_sheet  a paper's table as printed, without results
    missing   the cells of a table without a number
    cell_text  a `Table` -> a `Sheet`: the text of its cells
    render    a `Table` as Markdown, LaTeX, HTML, CSV, JSON; `markdown`, `latex` and `html_table` draw a `Sheet`
    terminal  a `Sheet` in a terminal
    provenance  the attempts at one stage, and how its cell differs from its base
    table_place  a cell of a table, by the words that name it
    number    where a number of a table comes from
    diff      what differs between two cells
    archive   tables with what made their numbers, as one file
    figure    curves (needs the extra `figures`)

Nothing here imports torch; only `query`, `provenance`, `number` and `diff` import SQLAlchemy.
"""
