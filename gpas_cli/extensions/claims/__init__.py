"""Claims: statements about recorded numbers, the papers' and the user's own, and what the results say about them.

declared    the claims of a file and of the papers, and their selection by name, grid and source
checks      what is wrong with them when experiments.yaml is read
measure     the number that one run contributes, and subjects paired with their bases by seed
evaluate    a claim + what is recorded -> `Verdict`; p values and intervals; the command that adds what is missing
sequential  a test that holds under optional stopping
verdict     `Verdict` and its parts; evidence that stays valid however often it is read
command     `gpas claims`
appendix    what those who check claims must know before, for a paper's artifact
frame       `gpas_cli.results.claims`
"""

from gpas_cli.extension import Command, Extension

_PLACE = "gpas_cli.extensions.claims"
_ABOUT = "Judge each claim, published or your own, by your results."

EXTENSION = Extension(
    name="claims",
    commands={"claims": Command("Every day", f"{_PLACE}.command", _ABOUT, shows_results=True)},
    checks={"claims": f"{_PLACE}.declared:paper_claims"},
    problems=(f"{_PLACE}.checks:problems",),
    frames={"claims": f"{_PLACE}.frame:claims"},
)
