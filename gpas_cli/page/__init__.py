"""The report page: one HTML file with tables, claims, interactive figures and cells. It can be served live.

content    what the page shows, from what is recorded of some cells
cells      one row per cell, and its details: configuration, attempts, environment, end of the log
charts     figures as plain data, thinned by `thinning`
claims     verdicts on claims, with the drawing of each interval
limits     how much fits on a page; `shared` leaves out what cells have in common
document   content -> HTML, with the style sheet and the scripts of assets/ inside
encode     data as JSON that is safe inside HTML
live       content that is collected again when it is requested and out of date
server     an HTTP server for this machine alone
"""
