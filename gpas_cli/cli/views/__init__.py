"""What several commands print: text for a terminal of any width, and JSON. A view imports no command.

columns      tables of many rows; every view that prints one uses it
progress     the progress of runs and of tokenising, and what was submitted
states       states of cells
events       journal events as lines of text
plan         the plan of a run
number       where a number of a table comes from, scores at tasks
"""
