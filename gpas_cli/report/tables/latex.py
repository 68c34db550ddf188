r"""One `Sheet` -> LaTeX: a `table` environment with booktabs' rules, or several where one would be too wide for a page.

Column widths are estimated from those of Computer Modern's characters, so that tables fit into a text width of 345 pt,
the default of `article` at 10 pt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpas_cli.report.tables.column_layout import ColumnLayout, Spacing, fit
from gpas_cli.report.tables.note import Note
from gpas_cli.report.tables.sheet import Sheet, Style, stacked
from gpas_cli.words import one_line

TEXT_WIDTH = 345.0  # points
SPACINGS = (Spacing(12), Spacing(6), Spacing(10, wrapped=True), Spacing(6, wrapped=True))  # points
MOST_TABLES = 3  # above each other; if more are needed, published numbers are put below ours
LONGEST_LABEL = 150.0  # points; longer row labels are wrapped
NEGATIVE = re.compile(r"(?<![\w.,)\]}-])-(?=\d)")  # the hyphen of a number such as -0.98
BOLD_WIDTH = 1.14  # of bold digits, relative to others
BOLD = "\0"  # around bold text whose width is estimated; printable text does not have it
MEASURED = Style(one_line, lambda text: f"{BOLD}{text}{BOLD}", str, minus="=", indent="M")  # as wide as minus and quad
PREAMBLE = (
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
_FORWARD, _BACK = "\N{MULTIPLICATION SIGN}", "\N{DOWNWARDS ARROW}\N{UPWARDS ARROW}"  # with the next or the last word
# Points that a character takes in \small (9 pt), rounded up; all others take 7.3.
_WIDTHS = {
    **dict.fromkeys("!',.:;[]`il|", 2.6),
    **dict.fromkeys(" -fj", 3.1),
    **dict.fromkeys("()Ir_st", 3.7),
    **dict.fromkeys("0123456789", 4.63),
    **dict.fromkeys('"$*/?\\^acegkoqvxyz{}~', 4.9),
    **dict.fromkeys("SZbdhnpu", 5.7),
    **dict.fromkeys("#%MW", 9.6),
    "m": 7.8,
}
_OTHER_WIDTH = 7.3


def latex_escape(text: str) -> str:
    """Return text that LaTeX typesets verbatim."""
    escaped = "".join(_ESCAPED.get(character, character) for character in one_line(text))
    return re.sub("-(?=-)", "-{}", escaped).replace("}$$^{", "")  # else two hyphens become a dash


LATEX = Style(
    latex_escape,
    lambda text: f"\\textbf{{{text}}}",
    lambda text: f"\\underline{{{text}}}",
    minus="$-$",
    plus_minus="$\\pm$",
    infinity="$\\infty$",
    indent="\\quad ",
    unfinished="--",
)


def to_latex(sheet: Sheet) -> str:
    """Return one or more `table` environments below a comment on the packages they need; the last has the notes.

    Published numbers stand beside ours or, if that needs more than MOST_TABLES, below them.
    """
    layout = _fitted(sheet)
    if len(layout.blocks) > MOST_TABLES and sheet.kinds:
        narrow = stacked(sheet)
        if len(_fitted(narrow).blocks) < len(layout.blocks):
            sheet, layout = narrow, _fitted(narrow)
    lines = sheet.texts(LATEX)
    title = latex_escape(sheet.title)
    label = "l"
    if any(text_width(line[0]) > LONGEST_LABEL for line in sheet.texts(MEASURED)):
        label = f"p{{{LONGEST_LABEL:g}pt}}"
        lines = [[f"\\raggedright {line[0]}", *line[1:]] for line in lines]
    if layout.spacing.wrapped:
        _, wrapped = _widths(sheet)
        sides = ["l", *"r" * (len(wrapped) - 1)]
        lines[0] = list(map(_wrap, sheet.texts(MEASURED)[0], lines[0], wrapped, sides))
    environments = []
    for i, block in enumerate(layout.blocks, 1):
        caption = title if len(layout.blocks) == 1 else f"{title} ({i} of {len(layout.blocks)})"
        sentences = _sentences(sheet.notes) if i == len(layout.blocks) else []
        rows = [[line[j] for j in block] for line in lines]
        environments.append(_environment(caption, label, rows, layout.spacing, sentences, sheet.rules))
    return "\n\n".join(["\n".join(PREAMBLE), *environments]) + "\n"


def _fitted(sheet: Sheet) -> ColumnLayout:
    widths, wrapped = _widths(sheet)
    return fit(sheet.groups, widths, wrapped, TEXT_WIDTH, SPACINGS)


def text_width(text: str) -> float:
    r"""Return the approximate width of plain `text` in \small, in points, rounded up; text between BOLD is wider."""
    plain = sum(_WIDTHS.get(character, _OTHER_WIDTH) for character in text if character != BOLD)
    bold = sum(_WIDTHS.get(character, _OTHER_WIDTH) for part in text.split(BOLD)[1::2] for character in part)
    return plain + (BOLD_WIDTH - 1) * bold


def _widths(sheet: Sheet) -> tuple[list[float], list[float]]:
    """Return the widths of all columns in points, and the widths with wrapped headers."""
    header, *body = sheet.texts(MEASURED)
    widest = [max(map(text_width, column)) for column in zip(*body, strict=True)]
    whole = [max(text_width(text), width) for text, width in zip(header, widest, strict=True)]
    words = [max(map(text_width, _words(text)), default=0) for text in header]
    wrapped = list(map(max, words, widest))
    return [min(whole[0], LONGEST_LABEL), *whole[1:]], [min(wrapped[0], LONGEST_LABEL), *wrapped[1:]]


def _words(text: str) -> list[str]:
    """Return the parts of a header between which a line may break: signs stay beside the words they belong to."""
    return re.split(rf"(?<![\s{_FORWARD}])\s+(?![\s{_BACK}])", text.strip())


def _wrap(text: str, whole: str, width: float, side: str = "r") -> str:
    """Return a header broken into lines of at most `width` points, or `whole`, its LaTeX, if it needs only one."""
    lines: list[str] = []
    for word in _words(text):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    if len(lines) <= 1:
        return whole
    above = r" \\ ".join(map(latex_escape, lines))
    return rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{above}\end{{tabular}}"


def _sentences(found: Sequence[Note]) -> list[str]:
    """Return the notes as sentences of a paragraph, each on a line of its own, with the minus of numbers."""
    return [f"    {re.sub(NEGATIVE, '$-$', latex_escape(note.sentence))}" for note in found]


def _environment(
    caption: str,
    label: str,
    rows: Sequence[Sequence[str]],
    spacing: Spacing,
    sentences: Sequence[str],
    rules: frozenset[int],
) -> str:
    """Return a table; `rules` are the rows, counted from 1 for the first after the header, with a rule above."""
    header, *lines = (f"    {' & '.join(row)} \\\\" for row in rows)
    body = []
    for place, line in enumerate(lines, 1):
        body += ["    \\midrule", line] if place in rules else [line]
    # Nothing outside the outer columns: their text ends where the rules do.
    columns = f"@{{}}{label}{'r' * (len(rows[0]) - 1)}@{{}}"
    parts = [
        "\\begin{table}",
        "  \\centering\\small",
        f"  \\setlength{{\\tabcolsep}}{{{spacing.gap / 2:g}pt}}",
        f"  \\caption{{{caption}}}\\smallskip",
        f"  \\begin{{tabular}}{{{columns}}}",
        *("    \\toprule", header, "    \\midrule", *body, "    \\bottomrule"),
        "  \\end{tabular}",
    ]
    if sentences:
        parts += ["  \\par\\smallskip", "  \\parbox{\\linewidth}{\\footnotesize\\raggedright", *sentences, "  }"]
    return "\n".join([*parts, "\\end{table}"])
