"""Tables: entries + results -> a `Table`, and a `Table` as text.

grouping      entries by row and column
entry_status  the number that one entry contributes, or why there is none
external      networks that were not trained here, as rows below the cells
ranking       the best and second best of a column
table         entries + results -> `Table`: data, not text
side_by_side  several metrics in one table
paper_table   a `Table` in the order of a paper; `recipe_table` is its table of settings
table_place   a cell of a table, by the words that name it
table_checks  whether the tables that grids declare can be made
missing       which cells have no number, and what would run them
notes         what a reader must know of a table; `published_notes` are those of published numbers
cell_text     a `Table` -> a `Sheet`: the text of its cells; `printed_sheet` is that of a published table
render        a `Sheet` as Markdown, LaTeX, HTML, JSON; `markdown`, `latex` and `html_table` draw it
csv_table     `Table`s as CSV, with one header for several
terminal      a `Sheet` in a terminal; `column_layout` fits it into the width
"""
