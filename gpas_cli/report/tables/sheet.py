"""A table as text: what every text format draws, from a header, lines and notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpas_cli.report.tables.note import Note
from gpas_cli.words import one_line


@dataclass(frozen=True)
class Style:
    """How an output format writes text, emphasis and signs. `escape` also makes text printable.

    unfinished: what stands for a number that a run does not have yet, by default the state of the run.
    """

    escape: Callable[[str], str]
    bold: Callable[[str], str]
    underline: Callable[[str], str]
    minus: str = "-"
    plus_minus: str = "±"
    infinity: str = "inf"
    indent: str = "  "
    unfinished: str = ""


PLAIN = Style(one_line, str, str)


@dataclass(frozen=True)
class Sheet:
    """A table as text.

    texts: the lines in a style, the header first; every line has as many texts as the header, its title first.
    groups: columns, without the first, that belong together: ours, and the published ones beside it. published: the
    columns with published numbers. notes: below the table. rules: the lines, counted from 1 for the first after the
    header, that have a rule above.
    """

    title: str
    texts: Callable[[Style], list[list[str]]]
    groups: Sequence[Sequence[int]]
    notes: Sequence[Note] = ()
    rules: frozenset[int] = field(default_factory=frozenset)
    published: frozenset[int] = field(default_factory=frozenset)
