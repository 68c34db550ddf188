r"""One `Sheet` -> LaTeX: a `table` environment with booktabs' rules, or several where one would be too wide for a page.

A part has as many columns as have room in MOST_CHARACTERS; a column and the published numbers beside it stay together
where they fit. Names of rows that take more than half of a line are wrapped.
"""

import re
from collections.abc import Sequence

from gpas_cli.report.tables.sheet import Sheet, Spacing, Style, fit
from gpas_cli.words import one_line

MOST_CHARACTERS = 78  # of a line: in \small about the 345 pt of `article` at 10 pt
_SPACING = Spacing(2)  # characters between columns
_NEGATIVE = re.compile(r"(?<![\w.,)\]}-])-(?=\d)")  # the hyphen of a number such as -0.98
_PREAMBLE = (
    r"% Needs \usepackage{booktabs}. Made for a text width of 345pt; in two columns put table* for table.",
    "% Characters beyond Latin and Greek need XeLaTeX or LuaLaTeX.",
)

_GREEK = {
    **dict(zip("αβγδεζηθ", ("alpha", "beta", "gamma", "delta", "varepsilon", "zeta", "eta", "theta"), strict=True)),
    **dict(zip("ικλμνξπρ", ("iota", "kappa", "lambda", "mu", "nu", "xi", "pi", "rho"), strict=True)),
    **dict(zip("στυφχψω", ("sigma", "tau", "upsilon", "varphi", "chi", "psi", "omega"), strict=True)),
    **dict(zip("ΓΔΘΛΞΠ", ("Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi"), strict=True)),
    **dict(zip("ΣΥΦΨΩ", ("Sigma", "Upsilon", "Phi", "Psi", "Omega"), strict=True)),
}
_SIGNS = {
    "±": "pm",
    "\N{MULTIPLICATION SIGN}": "times",
    "→": "to",
    "←": "leftarrow",
    "≤": "le",
    "≥": "ge",
    "≈": "approx",
    "∞": "infty",
    "↓": "downarrow",
    "↑": "uparrow",
    "✓": "surd",
}
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))
_ESCAPED = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # After a line break a bracket would be an option; after ? or ! a backtick would turn them upside down.
    **{character: f"{{{character}}}" for character in "[]`"},
    "\N{MINUS SIGN}": "$-$",
    **{character: f"$\\{name}$" for character, name in (_GREEK | _SIGNS).items()},
    **{character: f"$^{{{digit}}}$" for character, digit in _RAISED.items()},
}


def latex_escape(text: str) -> str:
    """Return text that LaTeX typesets verbatim."""
    escaped = "".join(_ESCAPED.get(character, character) for character in one_line(text))
    return re.sub("-(?=-)", "-{}", escaped).replace("}$$^{", "")  # else two hyphens become a dash


_LATEX = Style(
    latex_escape,
    lambda text: f"\\textbf{{{text}}}",
    lambda text: f"\\underline{{{text}}}",
    minus="$-$",
    plus_minus="$\\pm$",
    infinity="$\\infty$",
    indent="\\quad ",
    unfinished="--",
)


_MEASURED = Style(one_line, str, str, unfinished=_LATEX.unfinished)


def to_latex(sheet: Sheet) -> str:
    """Return one or more `table` environments below a comment on the packages they need; the last has the notes."""
    widths = [max(map(_width, column)) for column in zip(*sheet.texts(_MEASURED), strict=True)]
    names = "p{0.5\\linewidth}" if widths[0] > MOST_CHARACTERS // 2 else "l"
    widths[0] = min(widths[0], MOST_CHARACTERS // 2)
    parts = fit(sheet.groups, widths, widths, MOST_CHARACTERS, [_SPACING]).blocks
    lines = sheet.texts(_LATEX)
    title = latex_escape(sheet.title)
    sentences = [latex_escape(_NEGATIVE.sub("\N{MINUS SIGN}", note.sentence)) for note in sheet.notes]
    environments = []
    for i, part in enumerate(parts, 1):
        caption = title if len(parts) == 1 else f"{title} ({i} of {len(parts)})"
        rows = [[line[j] for j in part] for line in lines]
        environments.append(_environment(caption, names, rows, sentences if i == len(parts) else [], sheet.rules))
    return "\n\n".join(["\n".join(_PREAMBLE), *environments]) + "\n"


def _width(text: str) -> int:
    """Return the width of text in characters, of which capitals take half as much again."""
    return len(text) + sum(map(str.isupper, text)) // 2


def _environment(
    caption: str, names: str, rows: Sequence[Sequence[str]], sentences: Sequence[str], rules: frozenset[int]
) -> str:
    """Return a table; `rules` are the rows, counted from 1 for the first after the header, with a rule above.

    `names` is the form of the first column.
    """
    header, *lines = (f"    {' & '.join(row)} \\\\" for row in rows)
    body = []
    for place, line in enumerate(lines, 1):
        body += ["    \\midrule", line] if place in rules else [line]
    # Nothing outside the outer columns: their text ends where the rules do.
    columns = f"@{{}}{names}{'r' * (len(rows[0]) - 1)}@{{}}"
    parts = [
        "\\begin{table}",
        "  \\centering\\small",
        "  \\setlength{\\tabcolsep}{3pt}",
        f"  \\caption{{{caption}}}\\smallskip",
        f"  \\begin{{tabular}}{{{columns}}}",
        *("    \\toprule", header, "    \\midrule", *body, "    \\bottomrule"),
        "  \\end{tabular}",
    ]
    if sentences:
        paragraph = [f"    {sentence}" for sentence in sentences]
        parts += ["  \\par\\smallskip", "  \\parbox{\\linewidth}{\\footnotesize\\raggedright", *paragraph, "  }"]
    return "\n".join([*parts, "\\end{table}"])
