"""The report page: one HTML file with tables, claims, interactive figures and cells. It can be served live.

content    what the page shows: tables, the papers' tables, verdicts on claims, one row per cell and its details
charts     figures as plain data, and how much fits on a page
document   content -> HTML, with the style sheet and the scripts of assets/ inside
server     an HTTP server for this machine only; its content is collected again when it is out of date
"""
