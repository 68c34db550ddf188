"""A table as text: what every text format draws, from a header, lines and notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    groups: columns, without the first, that belong together: ours, and the published ones beside it.
    published: the columns with published numbers. kinds: what the further columns of a group show, by column.
    notes: below the table. rules: the lines, counted from 1 for the first after the header, that have a rule above.
    """

    title: str
    texts: Callable[[Style], list[list[str]]]
    groups: Sequence[Sequence[int]]
    notes: Sequence[Note] = ()
    rules: frozenset[int] = field(default_factory=frozenset)
    published: frozenset[int] = field(default_factory=frozenset)
    kinds: Mapping[int, str] = field(default_factory=dict)


def stacked(sheet: Sheet) -> Sheet:
    """Return the same table with the further columns of each group as lines below ours, which makes it narrower."""
    kinds = list(dict.fromkeys(sheet.kinds.values()))
    columns = {(group[0], sheet.kinds[i]): i for group in sheet.groups for i in group[1:]}
    firsts = [group[0] for group in sheet.groups]

    def parts(line: Sequence[str], style: Style) -> list[list[str]]:
        """Return the line, and a line below it for each kind of which it has a number."""
        found = [[line[0], *(line[i] for i in firsts)]]
        for kind in kinds:
            texts = [line[columns[i, kind]] if (i, kind) in columns else "" for i in firsts]
            if any(texts):
                found.append([2 * style.indent + style.escape(kind), *texts])
        return found

    def texts(style: Style) -> list[list[str]]:
        header, *lines = sheet.texts(style)
        return [[header[0], *(header[i] for i in firsts)], *(part for line in lines for part in parts(line, style))]

    lengths = [len(parts(line, PLAIN)) for line in sheet.texts(PLAIN)[1:]]
    rules = frozenset(1 + sum(lengths[: rule - 1]) for rule in sheet.rules)
    return Sheet(sheet.title, texts, [[i] for i in range(1, 1 + len(firsts))], sheet.notes, rules)
