"""The report page: one HTML file with tables, claims, interactive figures and cells. It can be served live.

content    what the page shows: tables, the papers' tables, one row per cell and its details
charts     figures as plain data, and how much fits on a page
claims     verdicts on claims, with the drawing of each interval
document   content -> HTML, with the style sheet and the scripts of assets/ inside
live       content that is collected again when it is requested and out of date
server     an HTTP server for this machine alone
"""
