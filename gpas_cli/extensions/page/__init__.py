"""The report page: one HTML file with tables, claims, interactive figures and cells. It can be served live.

content    what the page shows: tables, the papers' tables, verdicts on claims, one row per cell and its details
charts     figures as plain data, and how much fits on a page
document   content -> HTML, with the style sheet and the scripts of assets/ inside
server     an HTTP server for this machine only; its content is collected again when it is out of date
"""

from gpas_cli.extension import Command, Extension

_COMMAND = "gpas_cli.extensions.page.command"
_REPORT = "Write one HTML page of everything; --serve shows it live."

EXTENSION = Extension(
    name="page",
    requires=("claims", "curves", "figures"),
    commands={"report": Command("Every day", _COMMAND, _REPORT, shows_results=True)},
)
