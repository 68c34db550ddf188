"""The report page: one HTML file with tables, claims, interactive figures and a list of cells.

content    what the page shows, from what is recorded of some cells
cells      one row per cell, and its details: configuration, attempts, environment, end of the log
document   content -> HTML, with the style sheet and the scripts of assets/ inside
encode     data as JSON that is safe inside HTML
"""
