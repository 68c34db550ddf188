"""Tables: entries + results -> a `Table`, and a `Table` as text.

entry_status  the number that one entry contributes, or why there is none
table         `Table`: data, not text; and how its spots are filled with numbers
grid_table    the table that a grid declares -> `Table`: rows and columns from axes; of several metrics, side by side
paper_table   a paper's table -> `Table`: in its order and notation, with our numbers or without
table_place   a cell of a table, by the words that name it, and the cells without a number
notes         what a reader must know of a table
sheet         `Sheet`: a table as lines of text with notes, how its columns fit a width, in a terminal and as LaTeX
cell_text     a `Table` -> a `Sheet`: the text of its cells
render        a `Table` as Markdown, HTML, JSON, CSV
"""
