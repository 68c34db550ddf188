"""Tables, claims, figures, provenance and the report page, made from database rows.

    recorded     what is recorded of some cells: states and results, where everything here starts
    query        the decisive result of each stage, attempts, curves, from the database
    result       the result of one stage; `metrics` names what it can contain
    labels       what a cell is called: in row titles, and in the papers
    papers/      published numbers, recipes, layouts, claims and figures, as data
    statistics/  means, intervals, tests
    tables/      entries + results -> a table, and the table as text
    claims/      statements about results, and what the results say about them
    figures/     curves as data, and their drawings
    origin/      where a number comes from, what differs between cells, archives
    page/        one HTML file with all of it, and its live form
    checks       whether the tables and claims that experiments.yaml declares name what exists

Nothing here imports torch.
"""
