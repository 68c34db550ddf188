"""A table as text: what every text format draws, from a header, lines and notes; as drawn in a terminal and in LaTeX.

In a terminal, columns that do not fit have less padding, wrapped headers, or further blocks. Text is never truncated.
In LaTeX, it is a `table` environment with booktabs' rules; one that is wider than a line is scaled down.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from gpas_cli.structure import HIDDEN, Frozen
from gpas_cli.words import count, one_line

# The themes by which a terminal groups notes, with the kinds of each.
THEMES = {
    "reading": ("seeds", "best", "delta", "marks", "scores"),
    "runs": ("cells", "diverged", "unfinished", "withheld", "pairs", "base", "mixture", "text", "override", "origin"),
    "contributed": ("contributed",),
    "published": ("published", "compared", "budget", "remark", "gains"),
    "recipes": ("recipe",),
}
# Kinds of notes, the ones that a reader must not miss first: `--notes short` leaves out the last ones.
_URGENCY = (
    *("withheld", "mixture", "diverged", "unfinished", "pairs", "base", "best", "text", "override", "contributed"),
    *("compared", "cells", "published", "gains", "seeds", "delta", "budget", "scores", "remark", "recipe", "origin"),
    "marks",
)
# Kinds of notes whose first word is capitalised in a sentence: it is never a name.
_CAPITALISED = (
    *("seeds", "best", "delta", "marks", "cells", "diverged", "unfinished", "withheld", "pairs", "base"),
    *("contributed", "compared", "gains"),
)
_NEVER_NAMES = ("the ", "guessing ", "no cell ")  # beginnings of notes of other kinds that are capitalised, too

_Blocks = tuple[tuple[int, ...], ...]  # the columns of each block of a table; column 0 comes first in each of them
_AROUND = 4  # lines of a table in a terminal besides its texts: title, rule, and two that are empty
_NARROWEST_LABEL = 8  # characters to which row labels are wrapped when a number would not fit beside them
_NEGATIVE = re.compile(r"(?<![\w.,)\]}-])-(?=\d)")  # the hyphen of a number such as -0.98
_PREAMBLE = r"""% Needs \usepackage{booktabs,graphicx}. In two columns put table* for table.
% Characters beyond Latin and Greek need XeLaTeX or LuaLaTeX.

"""
# A box of its own width, but no wider than a line.
_SCALED = r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"

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


class Note(Frozen):
    """A note below a table. `brief` is its short form for a terminal, "" if there is none.

    `kind`: seeds, best, delta, marks, diverged, unfinished, withheld, pairs, base, mixture, scores,
    override, contributed, published, compared, remark, recipe, budget, gains, or cells: which grid has the cells of a
    printed table.
    """

    kind: str
    text: str
    brief: str = field(default="", metadata=HIDDEN)

    @property
    def theme(self) -> str:
        """What the note is about: one of THEMES."""
        return next(theme for theme, kinds in THEMES.items() if self.kind in kinds)

    @property
    def sentence(self) -> str:
        """The note as a sentence, with a point."""
        named = self.kind not in _CAPITALISED and not self.text.startswith(_NEVER_NAMES)
        return f"{self.text if named else self.text[:1].upper() + self.text[1:]}."


class Style(Frozen):
    """How an output format writes text, emphasis and signs. `escape` also makes text printable.

    unfinished: the text for a number that a run does not have yet, by default the state of the run.
    """

    escape: Callable[[str], str]
    bold: Callable[[str], str]
    underline: Callable[[str], str]
    minus: str = "-"
    plus_minus: str = "±"
    infinity: str = "inf"
    power: str = "{}e{}"  # a number times a power of ten
    indent: str = "  "
    unfinished: str = ""


PLAIN = Style(one_line, str, str)


class Sheet(Frozen):
    """A table as text."""

    title: str
    texts: Callable[[Style], list[list[str]]]
    """The lines in a style, the header first; every line has as many texts as the header, its title first."""
    groups: Sequence[Sequence[int]]
    """Columns, without the first, that belong together: ours, and the contributed and published ones beside it."""
    notes: Sequence[Note] = ()  # below the table
    rules: frozenset[int] = field(default_factory=frozenset)
    """The lines, counted from 1 for the first after the header, that have a rule above."""
    origins: Sequence[str] = ()  # whose the numbers of each column are: ours, contributed, published

    def with_notes(self, which: str, width: int = 120) -> "Sheet":
        """Return the table with the notes `which`: all, none or short.

        short: those that a reader must not miss, in at most as many lines, `width` characters wide, as the table has.
        """
        if which != "short":
            return self if which == "all" else replace(self, notes=())
        console, lines = Console(), len(self.texts(PLAIN)) + _AROUND
        room = max(1, width - max(map(len, THEMES)) - 3)  # beside the columns before the text, as `_notes` draws them
        chosen = []
        for note in sorted(self.notes, key=lambda note: _URGENCY.index(note.kind)):
            own = len(Text(note.brief or note.text).wrap(console, room))
            if own <= lines:
                chosen.append(note)
                lines -= own
        return replace(self, notes=[note for note in self.notes if note in chosen])


class _Spacing(Frozen):
    """The space between two columns, and at both ends of a line together. `wrapped`: headers take several lines."""

    gap: int
    edges: int = 0
    wrapped: bool = False


_SPACINGS = (_Spacing(3, edges=2), _Spacing(2), _Spacing(2, wrapped=True))


def _fitted(groups: Sequence[Sequence[int]], lines: Sequence[Sequence[Text]], room: int) -> tuple[_Spacing, _Blocks]:
    """Return the layout with the fewest blocks; among equals, the one with the first spacing at which all of them fit.

    groups: columns to keep together where possible; all but column 0. A column that does not fit beside column 0 gets
    a separate block, wider than `room`.
    """
    found = []
    for spacing in _SPACINGS:
        widths = _wrapped_widths(lines) if spacing.wrapped else _widths(lines)
        blocks = _split(groups, widths, room, spacing)
        over = max(0, *(_width(block, widths, spacing) - room for block in blocks))
        found.append((len(blocks), over, spacing, blocks))
    _, _, spacing, blocks = min(found, key=lambda one: one[:2])
    return spacing, blocks


def _width(block: Sequence[int], widths: Sequence[int], spacing: _Spacing) -> int:
    return spacing.edges + spacing.gap * (len(block) - 1) + sum(widths[i] for i in block)


def _split(groups: Sequence[Sequence[int]], widths: Sequence[int], room: int, spacing: _Spacing) -> _Blocks:
    blocks: list[tuple[int, ...]] = [] if groups else [(0,)]
    for group in groups:
        # A group too wide for one block is split.
        whole = _width((0, *group), widths, spacing) <= room
        for part in [tuple(group)] if whole else [(i,) for i in group]:
            if blocks and _width((*blocks[-1], *part), widths, spacing) <= room:
                blocks[-1] += part
            else:
                blocks.append((0, *part))
    return tuple(blocks)


# Emphasis as ANSI codes, which `Text.from_ansi` reads; escaped text has no control characters that could be misread.
_STYLE = Style(one_line, lambda text: f"\x1b[1m{text}\x1b[0m", lambda text: f"\x1b[4m{text}\x1b[0m")


class Drawn(Frozen):
    """A table with its title above and its notes below. Columns that do not fit the width go into further blocks.

    notes: which of them, as for `Sheet.with_notes`.
    """

    sheet: Sheet
    notes: str = "all"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        sheet = self.sheet
        lines = [[Text.from_ansi(text) for text in line] for line in sheet.texts(_STYLE)]
        yield Text(one_line(sheet.title), style="italic")
        spacing, blocks = _fitted(sheet.groups, lines, options.max_width)
        for block in blocks:
            part = [[line[i] for i in block] for line in lines]
            yield _draw(part, spacing, options.max_width, sheet.rules)
        shown = sheet.with_notes(self.notes, options.max_width).notes
        if shown:
            yield _notes(shown)
        if (left := len(sheet.notes) - len(shown)) and self.notes == "short":
            yield Text(f"{count(left, 'more note')}: --notes all", style="dim")


def _widths(lines: Sequence[Sequence[Text]]) -> list[int]:
    return [max(text.cell_len for text in column) for column in zip(*lines, strict=True)]


def _wrapped_widths(lines: Sequence[Sequence[Text]]) -> list[int]:
    """Return the widths of the columns if headers are wrapped at every blank."""
    header, *body = lines
    return _widths([[max(text.split(" "), key=lambda word: word.cell_len, default=text) for text in header], *body])


def _notes(notes: Sequence[Note]) -> RenderableType:
    """Return the notes as a list for each theme."""
    drawn = RichTable.grid(padding=(0, 1, 0, 0))
    drawn.add_column()
    drawn.add_column()
    drawn.add_column(overflow="fold")
    for theme in THEMES:
        own = [note for note in notes if note.theme == theme]
        for i, note in enumerate(own):
            drawn.add_row("" if i else theme, "-", Text(one_line(note.brief or note.text)), style="dim")
    return drawn


def _draw(lines: Sequence[Sequence[Text]], spacing: _Spacing, room: int, rules: frozenset[int]) -> RichTable:
    """Return one block, at most `room` wide; if a single column is too wide, labels and then numbers are wrapped.

    rules: the lines, counted from 1 for the first after the header, that have a rule above.
    """
    label, *widths = _wrapped_widths(lines) if spacing.wrapped else _widths(lines)
    left = room - spacing.edges - sum(spacing.gap + width for width in widths)
    # rich puts a character between two columns, in addition to the padding.
    padding = (0, 1) if spacing.edges else (0, spacing.gap - 1, 0, 0)
    drawn = RichTable(box=SIMPLE_HEAD, show_edge=spacing.edges > 0, pad_edge=False, padding=padding)
    for i, width in enumerate((max(min(label, left), _NARROWEST_LABEL), *widths)):
        drawn.add_column(lines[0][i], justify="right" if i else "left", vertical="bottom", overflow="fold", width=width)
    for place, line in enumerate(lines[1:], 1):
        drawn.add_row(*line, end_section=place + 1 in rules)
    return drawn


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
    power="${}\\cdot10^{{{}}}$",
    indent="\\quad ",
    unfinished="--",
)


def to_latex(sheet: Sheet) -> str:
    """Return a `table` environment with the notes, below a comment on the packages that it needs."""
    texts = sheet.texts(_LATEX)
    header, *lines = (f"    {' & '.join(line)} \\\\" for line in texts)
    body = []
    for place, line in enumerate(lines, 1):
        body += ["    \\midrule", line] if place in sheet.rules else [line]
    # Nothing outside the outer columns: their text ends where the rules do.
    columns = f"@{{}}l{'r' * (len(texts[0]) - 1)}@{{}}"
    parts = [
        "\\begin{table}",
        "  \\centering\\small",
        "  \\setlength{\\tabcolsep}{3pt}",
        f"  \\caption{{{latex_escape(sheet.title)}}}\\smallskip",
        _SCALED,
        f"  \\begin{{tabular}}{{{columns}}}",
        *("    \\toprule", header, "    \\midrule", *body, "    \\bottomrule"),
        "  \\end{tabular}}",
    ]
    if sheet.notes:
        sentences = [_NEGATIVE.sub("\N{MINUS SIGN}", note.sentence) for note in sheet.notes]
        paragraph = [f"    {latex_escape(sentence)}" for sentence in sentences]
        parts += ["  \\par\\smallskip", "  \\parbox{\\linewidth}{\\footnotesize\\raggedright", *paragraph, "  }"]
    return _PREAMBLE + "\n".join([*parts, "\\end{table}"]) + "\n"
