"""One declared grid from its node. Labels and axis names are checked here, before anything is expanded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpas_cli.errors import Problem, nearest
from gpas_cli.grid.declared import Axis, Grid, Include, Override, TableSpec, Value, When, Where
from gpas_cli.grid.document import Mark, Node, mapping
from gpas_cli.grid.names import name_fault
from gpas_cli.grid.ranges import is_range, spelling_of, values_of
from gpas_cli.grid.readers import Path, built, entries, fault, items, sentence, texts, word, words
from gpas_cli.grid.scalar import Label, identity, same, spelled
from gpas_cli.grid.settings import SETTINGS, STAGE_SECTIONS, children, has_label, label, merge, nested, unnamed
from gpas_cli.spec.parse import control_character
from gpas_cli.spec.run import Cadence, Monitoring, Resources

GRID_KEYS = (
    *("title", "base", "axes", "when", "exclude", "override", "include"),
    *("stages", "cadence", "watch", "resources", "table"),
)
STAGES = ("pretrain", *STAGE_SECTIONS)
# What a cell is where nothing is said; these labels every cell has, so that tables and conditions can rely on them.
ASSUMED: dict[str, Label] = {"norm": "pre", "gate": "none", "seed": 42}

Labels = dict[str, tuple[Label, ...]]


def read_grid(name: str, node: Node, problems: list[Problem]) -> Grid | None:
    """The grid declared by `node`, or None after adding to `problems`."""
    before, path = len(problems), ("grids", name)
    if message := name_fault(name):
        fault(problems, path, message, node.key or node.mark)
    parts = entries(node, path, problems, GRID_KEYS)
    base = _read_base(parts, path, problems, node.mark)
    axes = _read_axes(parts.get("axes"), (*path, "axes"), problems)
    labels = known_labels(base, axes)
    when = _read_when(parts.get("when"), (*path, "when"), labels, problems)
    for step in when:
        labels = with_axes(labels, step.axes)
    title = sentence(parts.get("title"), (*path, "title"), problems, name)
    grid = Grid(
        name=name,
        title=title,
        mark=node.key or node.mark,
        base=base,
        axes=axes,
        when=when,
        exclude=_read_exclude(parts.get("exclude"), (*path, "exclude"), labels, problems),
        override=_read_override(parts.get("override"), (*path, "override"), labels, problems),
        include=_read_include(parts.get("include"), (*path, "include"), problems),
        cadence=_read_cadence(parts.get("cadence"), (*path, "cadence"), problems),
        watch=_read_watch(parts.get("watch"), (*path, "watch"), problems),
        resources=read_resources(parts.get("resources"), (*path, "resources"), problems),
        resources_node=parts.get("resources"),
        table=_read_table(parts.get("table"), (*path, "table"), title, problems),
        table_node=parts.get("table"),
    )
    if not grid.has_own_cells and not grid.include and len(problems) == before:
        fault(problems, path, "has neither settings nor axes nor include: it has no cells", grid.mark)
    return grid if len(problems) == before else None


def _read_base(parts: Mapping[str, Node], path: Path, problems: list[Problem], mark: Mark) -> Node:
    base = parts.get("base", mapping({}, mark))
    for name, node in entries(base, (*path, "base"), problems).items():
        check_setting(name, (*path, "base", name), node.key or node.mark, problems)
    tree = nested(base, problems, ("grids", str(path[1]), "base"))
    stages = _read_stages(parts.get("stages"), (*path, "stages"), problems)
    return merge(stages, tree) if stages else tree


def _read_stages(node: Node | None, path: Path, problems: list[Problem]) -> Node | None:
    """`stages: [pretrain, finetune]` as the sections it stands for, with their defaults."""
    if node is None:
        return None
    named = {word(item, path, problems): item for item in items(node, path, problems)}
    for stage, item in named.items():
        if stage and stage not in STAGES:
            fault(problems, path, f"unknown stage '{stage}'; {nearest(stage, STAGES)}", item)
    if "pretrain" not in named:
        fault(problems, path, "every cell starts with the stage 'pretrain'", node)
    chosen = {stage: mapping({}, item.mark) for stage, item in named.items() if stage in STAGES[1:]}
    return mapping(chosen, node.mark)


def check_setting(name: str, path: Path, mark: Mark, problems: list[Problem]) -> bool:
    """Whether `name` is a setting or a dotted path into one; if not, a problem is added."""
    top = name.split(".")[0]
    if top not in SETTINGS:
        fault(problems, path, f"unknown setting '{top}'; {nearest(top, SETTINGS)}", mark)
    elif "" in name.split("."):
        fault(problems, path, f"'{name}' is not a dotted path such as optim.lr", mark)
    else:
        return True
    return False


def _read_axes(node: Node | None, path: Path, problems: list[Problem]) -> tuple[Axis, ...]:
    axes: list[Axis] = []
    for name, values in entries(node, path, problems).items():
        if name == "zip":
            groups = values.value if isinstance(values.value, tuple) else (values,)
            axes.extend(axis for group in groups if (axis := _read_zip(group, (*path, name), problems)))
        elif check_setting(name, (*path, name), values.key or values.mark, problems):
            points = tuple((value,) for value in _read_values(name, values, (*path, name), problems))
            axes.extend([Axis((name,), points)] if points else [])
    seen: set[str] = set()
    for name in (name for axis in axes for name in axis.names):
        if name in seen and node is not None:
            fault(problems, (*path, name), "is an axis twice", node)
        seen.add(name)
    return tuple(axes)


def _read_zip(node: Node, path: Path, problems: list[Problem]) -> Axis | None:
    columns = {}
    for name, values in entries(node, path, problems).items():
        if check_setting(name, (*path, name), values.key or values.mark, problems):
            columns[name] = _read_values(name, values, (*path, name), problems, distinct=False)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        fault(problems, path, f"axes that vary together need equally many values: {told}", node)
    points = tuple(zip(*columns.values(), strict=False))
    return Axis(tuple(columns), points) if points else None


def _read_values(
    name: str, node: Node, path: Path, problems: list[Problem], *, distinct: bool = True
) -> tuple[Value, ...]:
    found: list[Value] = []
    seen: set[tuple[bool, Label]] = set()
    for item in _listed(node, path, problems):
        called = _read_label(name, item, path, problems)
        if distinct and identity(called) in seen:
            fault(problems, path, f"the value '{spelled(called)}' is listed twice", item)
        seen.add(identity(called))
        found.append(Value(called, Node(unnamed(item).value, item.mark, node.key, item.depth, item.count)))
    return tuple(found)


def _listed(node: Node, path: Path, problems: list[Problem]) -> list[Node]:
    """The values of an axis, those that a rule such as `{range: [1, 5]}` stands for written out."""
    if is_range(node):
        return list(values_of(node, path, problems))
    if message := spelling_of(node):
        fault(problems, path, f"'{node.plain()}' is not a list; {message}", node)
        return []
    if node.value == ():
        fault(problems, path, "is an empty list: the grid would have no cells", node)
    found: list[Node] = []
    for item in items(node, path, problems):
        if message := spelling_of(item):
            fault(problems, path, f"'{item.plain()}' is not a value; {message}", item)
        else:
            found.extend(values_of(item, path, problems) if is_range(item) else [item])
    return found


def _read_label(axis: str, node: Node, path: Path, problems: list[Problem]) -> Label:
    named = children(node).get("name")
    if named is not None and (not isinstance(named.value, str | int | float) or named.value == ""):
        fault(problems, (*path, "name"), "is not a word", named)
    elif named is not None and control_character(str(named.value)):
        fault(problems, (*path, "name"), "is more than one line", named)
    return label(node, axis)


def fixed_labels(base: Node) -> dict[str, Label]:
    """The labels of a grid's own settings, where they have one: `size: 71m`, not `optim: {lr: 1e-3}`."""
    named = {name: node for name, node in children(base).items() if has_label(node, name)}
    return ASSUMED | {name: label(node, name) for name, node in named.items()}


def known_labels(base: Node, axes: tuple[Axis, ...]) -> Labels:
    """The labels a condition may use: those of the axes, and of the settings that do not vary."""
    return {name: (value,) for name, value in fixed_labels(base).items()} | _labels_of(axes)


def _labels_of(axes: tuple[Axis, ...]) -> Labels:
    found: Labels = {}
    for axis in axes:
        for name in axis.names:
            found[name] = (*found.get(name, ()), *axis.labels(name))
    return found


def with_axes(labels: Labels, axes: tuple[Axis, ...]) -> Labels:
    """With conditional axes, the cells outside the condition keep the labels they had."""
    return labels | {name: (*labels.get(name, ()), *values) for name, values in _labels_of(axes).items()}


def read_where(node: Node | None, path: Path, labels: Labels, problems: list[Problem], mark: Mark) -> Where:
    """A condition, every name and label of it known."""
    terms = []
    for name, nodes in _condition(node, path, problems).items():
        if name not in labels:
            fault(problems, (*path, name), f"no axis '{name}'; {nearest(name, labels)}", nodes[0].key or nodes[0].mark)
            continue
        chosen = tuple(check_choice(item, (*path, name), labels[name], problems) for item in nodes)
        terms.append((name, nodes, chosen))
    return Where(node.mark if node else mark, tuple(terms))


def _condition(node: Node | None, path: Path, problems: list[Problem]) -> dict[str, tuple[Node, ...]]:
    """Axis -> the values it may have: one, or any of a list."""
    found = {}
    for name, wanted in entries(node, path, problems).items():
        if wanted.value == ():
            fault(problems, (*path, name), "is an empty list: no cell matches", wanted)
            continue
        listed = wanted.value if isinstance(wanted.value, tuple) else (wanted,)
        found[name] = tuple(replace(item, key=wanted.key) for item in listed)
    return found


def check_choice(node: Node, path: Path, valid: tuple[Label, ...], problems: list[Problem]) -> Label:
    """The label meant by `node`; a problem if the axis has no such value."""
    wanted = label(node, str(path[-1]))
    if not any(same(wanted, value) for value in valid):
        hint = nearest(spelled(wanted), dict.fromkeys(map(spelled, valid)))
        fault(problems, path, f"'{spelled(wanted)}' is no value of this axis; {hint}", node)
    return wanted


def _read_when(node: Node | None, path: Path, labels: Labels, problems: list[Problem]) -> tuple[When, ...]:
    steps = []
    for item in items(node, path, problems):
        parts = entries(item, path, problems, ("where", "axes"))
        axes = _read_axes(parts.get("axes"), (*path, "axes"), problems)
        if "axes" not in parts:
            fault(problems, path, "needs 'axes': the axes that only the matching cells have", item)
        where = read_where(parts.get("where"), (*path, "where"), labels, problems, item.mark)
        steps.append(When(where, axes))
        labels = with_axes(labels, axes)
    return tuple(steps)


def _read_exclude(node: Node | None, path: Path, labels: Labels, problems: list[Problem]) -> tuple[Where, ...]:
    found = []
    for item in items(node, path, problems):
        if isinstance(item.value, dict) and not item.value:
            fault(problems, path, "an empty condition would exclude every cell", item)
        found.append(read_where(item, path, labels, problems, item.mark))
    return tuple(found)


def _read_override(node: Node | None, path: Path, labels: Labels, problems: list[Problem]) -> tuple[Override, ...]:
    found = []
    for item in items(node, path, problems):
        parts = entries(item, path, problems, ("where", "set", "why"))
        for name, what in (("set", "the settings to change"), ("why", "the reason, in a sentence")):
            if name not in parts and isinstance(item.value, dict):
                fault(problems, path, f"needs '{name}': {what}", item)
        changes = parts.get("set", mapping({}, item.mark))
        for name, child in entries(changes, (*path, "set"), problems).items():
            check_setting(name, (*path, "set", name), child.key or child.mark, problems)
        where = read_where(parts.get("where"), (*path, "where"), labels, problems, item.mark)
        settings = nested(changes, problems, ("grids", str(path[1]), "override", "set"))
        found.append(Override(where, settings, sentence(parts.get("why"), (*path, "why"), problems)))
    return tuple(found)


def _read_include(node: Node | None, path: Path, problems: list[Problem]) -> tuple[Include, ...]:
    """`include: [table2, {grid: table2, where: {size: 350m}}]`; the condition is checked once all grids are read."""
    found = []
    for item in items(node, path, problems):
        parts = entries(item, path, problems, ("grid", "where")) if isinstance(item.value, dict) else {"grid": item}
        if "grid" not in parts:
            fault(problems, path, "needs 'grid': the name of another grid", item)
        name = word(parts.get("grid"), path, problems)
        condition = _condition(parts.get("where"), (*path, "where"), problems)
        terms = tuple((axis, nodes, tuple(label(n, axis) for n in nodes)) for axis, nodes in condition.items())
        found.append(Include(name, Where(item.mark, terms), item.mark))
    return tuple(found)


def _read_cadence(node: Node | None, path: Path, problems: list[Problem]) -> Cadence:
    return (built(Cadence, node, path, problems) if node else None) or Cadence()


def _read_watch(node: Node | None, path: Path, problems: list[Problem]) -> Monitoring:
    return (built(Monitoring, node, path, problems) if node else None) or Monitoring()


def read_resources(node: Node | None, path: Path, problems: list[Problem]) -> dict[str, object]:
    """The settings of a profile that is laid over another; those that are wrong are reported."""
    if node is None:
        return {}
    built(Resources, node, path, problems)
    return {name: child.plain() for name, child in children(node).items()}


def _read_table(node: Node | None, path: Path, title: str, problems: list[Problem]) -> TableSpec | None:
    if node is None:
        return None
    known = ("title", "rows", "columns", "value", "over", "against", "published")
    parts = entries(node, path, problems, known)
    return TableSpec(
        title=sentence(parts.get("title"), (*path, "title"), problems, title),
        rows=words(parts.get("rows"), (*path, "rows"), problems) or TableSpec.rows,
        columns=word(parts.get("columns"), (*path, "columns"), problems, TableSpec.columns),
        value=word(parts.get("value"), (*path, "value"), problems, TableSpec.value),
        over=word(parts.get("over"), (*path, "over"), problems, TableSpec.over),
        against=texts(parts.get("against"), (*path, "against"), problems),
        published=texts(parts.get("published"), (*path, "published"), problems),
    )
