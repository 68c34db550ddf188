"""Parts of the documentation that are generated from the code, and the MkDocs hooks that put them into its pages.

A page has the line `<!-- generated: NAME -->` where the part NAME of `PARTS` goes. Equations in ```math fences are
LaTeX, which becomes MathML: browsers draw it without a script.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpas_cli.cli.app import make_app
from gpas_cli.project import packaged

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from schemas import document_of, documents, json_schema

NOTEBOOK = Path(__file__).parent / "how-to/notebook.ipynb"
MARKER = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Draw ```math fences. MkDocs calls this once the configuration has been read."""
    fence = {"name": "math", "class": "math", "format": _math}
    config["mdx_configs"].setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the markers of a page by the parts that they name. MkDocs calls this for every page."""
    return MARKER.sub(lambda found: PARTS[found[1]](), markdown)


def on_post_build(config: Any) -> None:
    """Write the JSON Schema of each command to a file of the site. MkDocs calls this at the end."""
    folder = Path(config["site_dir"], "reference/schemas")
    folder.mkdir(parents=True, exist_ok=True)
    for name in documents():
        (folder / f"{name.replace(' ', '-')}.json").write_text(json.dumps(json_schema(document_of(name)), indent=2))


def _math(source: str, *_: Any, **__: Any) -> str:
    from latex2mathml.converter import convert

    lines = [line for line in source.strip().split(r"\\") if line.strip()]
    return "".join(convert(line.strip(), display="block") for line in lines)


# Commands


def commands() -> str:
    """A table of all commands, then the arguments and options of each, as Typer documents them."""
    from typer import Context
    from typer.cli import get_docs_for_click

    command = _program()
    text = get_docs_for_click(obj=command, ctx=Context(command), name="gpas")
    text = re.sub(r"(?<=^Example: )(.+)", r"`\1`", text, flags=re.MULTILINE)
    return f"{_overview(command)}\n\n{text[text.index('## `gpas init`') :]}"


def options() -> str:
    """Every option under a heading of its own, where the search finds it, with what it does in each command."""
    uses: dict[str, dict[str, list[str]]] = {}
    for path, one in _with_path(_program(), "gpas"):
        for parameter in one.params:
            for name in (name for name in parameter.opts if name.startswith("--") and name != "--help"):
                uses.setdefault(name, {}).setdefault(parameter.help, []).append(f"`{path}`")
    lines: list[str] = []
    for name, helps in sorted(uses.items()):
        meanings = (f"- {', '.join(paths)}: {text}" for text, paths in helps.items())
        lines += [f"#### `{name}` {{ #option{name[1:]} }}", "", *meanings, ""]
    return "\n".join(lines)


def _program() -> Any:
    from typer.main import get_command

    return get_command(make_app())


def _overview(command: Any) -> str:
    """A table of the commands in the order of `gpas --help`, with the first paragraph of their help."""
    lines = ["| command | what it does |", "|---|---|"]
    panels = list(dict.fromkeys(one.rich_help_panel for one in command.commands.values()))
    for name, top in sorted(command.commands.items(), key=lambda item: panels.index(item[1].rich_help_panel)):
        for path, one in _with_path(top, f"gpas {name}"):
            if not hasattr(one, "commands"):
                told = " ".join(one.help.split("\n\n")[0].split())
                lines.append(f"| [`{path}`](#{path.replace(' ', '-')}) | {told} |")
    return "\n".join(lines)


def _with_path(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the program, its groups and its commands, each with its path."""
    yield path, command
    for name, one in getattr(command, "commands", {}).items():
        yield from _with_path(one, f"{path} {name}")


# The JSON of commands


def json_documents() -> str:
    """Every document that a command prints with --json: a table of fields, then one for each type that they mention."""
    commands_of: dict[type, list[str]] = {}
    for name in documents():
        commands_of.setdefault(document_of(name), []).append(name)
    lines: list[str] = []
    for document, names in commands_of.items():
        lines += [f"## {', '.join(f'`gpas {name}`' for name in names)}", "", _joined(document.__doc__), ""]
        schema = json_schema(document)
        lines += _fields_table(schema)
        for name, part in sorted(schema.get("$defs", {}).items()):
            lines += ["", f"**{name}**: {part['description']}", "", *_fields_table(part)]
        lines.append("")
    return "\n".join(lines)


def _fields_table(schema: Mapping[str, Any]) -> Iterator[str]:
    yield from ("| field | type | meaning |", "|---|---|---|")
    for name, field in schema["properties"].items():
        optional = "" if name in schema["required"] else "May be absent. "
        yield f"| `{name}` | {_json_type(field)} | {optional}{field.get('description', '')} |"


def _json_type(field: Mapping[str, Any]) -> str:
    """A JSON Schema type in words: "list of RunCell", "string or null"."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "anyOf" in field:
        return " or ".join(map(_json_type, field["anyOf"]))
    kind = field.get("type", "any")
    if kind == "array":
        return f"list of {_json_type(field['items'])}"
    if kind == "object":
        return f"object of {_json_type(field['additionalProperties'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def events() -> str:
    """Every kind of journal event: when it is written, and its fields."""
    from gpas_cli.events import KINDS

    lines: list[str] = []
    for kind, cls in KINDS.items():
        required = {field.name for field in dataclasses.fields(cls) if _is_required(field)}
        lines += [f"## `{kind}`", "", *_docstring(cls), "", "| field | type | |", "|---|---|---|"]
        for name, field in json_schema(cls)["properties"].items():
            words = _json_type(field).removesuffix(" or null").replace("number or string", "number")
            lines.append(f"| `{name}` | {words} | {'required' if name in required else ''} |")
        lines.append("")
    return "\n".join(lines)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


# The grid language


def experiments() -> str:
    """Every grid of the experiments.yaml that the package ships: its paper, cells, and cost as `gpas plan` has it."""
    from gpas_cli.grid.expand import expand
    from gpas_cli.grid.load import load
    from gpas_cli.grid.packs import known_packs
    from gpas_cli.plan.machine import named_gpus
    from gpas_cli.plan.plan import plan

    shipped = load(packaged("experiments.yaml"))
    paper_of = {grid: f"`{name}`" for name, pack in known_packs().items() for grid in pack.names("grids")}
    lines = ["| grid | paper | cells | GPUs | GPU hours | experiment |", "|---|---|--:|--:|--:|---|"]
    with TemporaryDirectory() as empty:
        for name, grid in shipped.grids.items():
            planned = plan(Path(empty), expand(shipped, [name]), machine=named_gpus("A100"))
            gpus = max(job.resources.gpus for job in planned.jobs)
            cost = f"{gpus} | {planned.estimate.gpu_hours:,.0f}" if gpus else "CPU | "
            lines.append(f"| `{name}` | {paper_of.get(name, '')} | {len(planned.rows)} | {cost} | {grid.title} |")
    return "\n".join(lines)


def settings() -> str:
    """Every section of a cell and of a grid: its fields with type, default and allowed values."""
    from gpas_cli.spec.cost import MOST_DROPPED, PRECISIONS
    from gpas_cli.spec.data import CORPORA
    from gpas_cli.spec.depth import DEPTHS
    from gpas_cli.spec.model import EMBEDS, FAMILIES
    from gpas_cli.spec.parametrisation import PARAMETRISATIONS

    named = {
        "gate": ("none", "gpas"), "embed": EMBEDS, "family": FAMILIES, "parametrisation": PARAMETRISATIONS,
        "data": CORPORA, "depth": DEPTHS,
    }  # fmt: skip
    lines: list[str] = []
    for title, cls in _sections().items():
        lines += [f"### `{title}`", ""]
        if title in named:
            choices = ", ".join(f"`{name}`" for name in named[title])
            lines += [f"One of {choices}, or a mapping of these fields; `like: NAME` extends one of the names.", ""]
        lines += [*_docstring(cls), "", *_field_rows(cls), ""]
        if title == "optim":
            lines += _settings_of_choices(cls)
    lines += _objectives()
    precisions = ", ".join(f"`{name}`" for name in PRECISIONS)
    lines += ["### `dropout`, `precision` and `seed`", ""]
    lines += [
        f"`dropout` is a rate from 0 (the default) to {MOST_DROPPED}: in training, each element of what enters the"
    ]
    lines += [
        "first layer, and of the output of every sub-layer, is set to 0 with this probability, and the others are"
    ]
    lines += ["divided by 1 - rate. Attention probabilities are not dropped."]
    lines += [
        f"`precision` is one of {precisions} (default `fp32`). `bf16` and `fp16` keep weights and optimizer state in"
    ]
    lines += ["float32, and `fp16` scales the loss; `bf16_stream` is `bf16` with the residual stream in bfloat16;"]
    lines += ["`pure_bf16` has everything in bfloat16."]
    lines += ["`seed` is a whole number (default 42).", ""]
    return "\n".join(lines)


def _field_rows(cls: type) -> list[str]:
    from gpas_cli.spec.parse import own_fields

    rows = [_field_row(cls, field) for field in own_fields(cls)]
    return ["| field | type | default | allowed |", "|---|---|---|---|", *rows]


def _settings_of_choices(cls: type) -> list[str]:
    """The settings that a section has only with some values of another one, such as those of a schedule."""
    lines: list[str] = []
    for field in dataclasses.fields(cls):
        if "selector" in field.metadata:
            for value, own in field.metadata["classes"]().items():
                if dataclasses.fields(own):
                    title = f"#### With `{field.metadata['selector']}: {value}`"
                    lines += [title, "", *_docstring(own), "", *_field_rows(own), ""]
    return lines


def _objectives() -> list[str]:
    """What a cell may be trained to predict, with the settings of each objective."""
    from gpas_cli.spec.objective import OBJECTIVES, Objective

    names = ", ".join(f"`{name}`" for name in OBJECTIVES)
    lines = ["### `objective`", "", f"One of {names}, or a mapping that changes one: `{{like: mlm, rate: 0.3}}`.", ""]
    kinds: dict[type[Objective], str] = {type(objective): objective.kind for objective in OBJECTIVES.values()}
    for cls, kind in kinds.items():
        lines += [f"#### With `kind: {kind}`", "", *_docstring(cls), "", *_field_rows(cls), ""]
    return lines


def _sections() -> dict[str, type]:
    """The dataclasses behind the sections, by the path at which experiments.yaml has them."""
    from gpas_cli.grid.declared import Grid
    from gpas_cli.spec.cell import Cell
    from gpas_cli.spec.extensions import stage_kinds
    from gpas_cli.spec.run import Resources

    of_grid = typing.get_type_hints(Grid)
    of_cell = {name: hint for name, hint in typing.get_type_hints(Cell).items() if name != "later"}
    later = {name: kind.parameters for name, kind in stage_kinds().items() if kind.parameters}
    model = typing.get_type_hints(of_cell.pop("model"))
    parts = {name: _bare(hint) for name, hint in {**model, **of_cell, **later}.items() if name != "norm"}
    beside = {"cadence": _bare(of_grid["cadence"]), "watch": _bare(of_grid["watch"]), "resources": Resources}
    return {name: cls for name, cls in {**parts, **beside}.items() if dataclasses.is_dataclass(cls)}


def _bare(hint: Any) -> Any:
    """A type without its `| None`."""
    if isinstance(hint, types.UnionType):
        return next((part for part in typing.get_args(hint) if part is not types.NoneType), hint)
    return hint


def _field_row(cls: type, field: dataclasses.Field[Any]) -> str:
    hint = typing.get_type_hints(cls)[field.name]
    return f"| `{field.name}` | {_type_words(hint)} | {_default(field)} | {_allowed(field.metadata)} |"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    return "all" if field.default == field.metadata.get("choices") else f"`{_yaml(field.default)}`"


def _type_words(hint: Any) -> str:
    names = {str: "string", int: "whole number", float: "number", bool: "true or false", types.NoneType: "nothing"}
    if hint in names:
        return names[hint]
    if isinstance(hint, types.UnionType):
        return " or ".join(map(_type_words, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple and dataclasses.is_dataclass(typing.get_args(hint)[0]):
        return "corpora with their weights"
    if typing.get_origin(hint) is tuple:
        return f"list of {_type_words(typing.get_args(hint)[0])}s"
    raise TypeError(f"no words for the type {hint!r}")


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return '""' if value == "" else str(value)


def _allowed(bounds: Mapping[str, Any]) -> str:
    if bounds.get("choices"):
        return ", ".join([f"`{choice}`" for choice in bounds["choices"]] + ["…"] * bool(bounds.get("check")))
    low, above, high = (bounds.get(name) for name in ("low", "above", "high"))
    parts = (
        f"at least {_yaml(low)}" if low is not None else "",
        f"above {_yaml(above)}" if above is not None else "",
        f"at most {_yaml(high)}" if high is not None else "",
    )
    return ", ".join(filter(None, parts))


def sizes() -> str:
    """The built-in sizes with their shape and number of parameters."""
    from gpas_cli.spec.cost import parameters
    from gpas_cli.spec.model import SIZES
    from gpas_cli.spec.parse_cell import cell_from

    rest = {"data": {"tokenizer": "bpe"}, "optim": {"lr": 1e-3, "warmup": 0, "steps": 1}}
    lines = ["| size | hidden | ffn | heads | layers | vocab | parameters |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name, size in SIZES.items():
        count = parameters(cell_from({"size": name, **rest}))
        numbers = (size.hidden, size.ffn, size.heads, size.layers, size.vocab, count)
        lines.append(f"| `{name}` | {' | '.join(f'{number:,}' for number in numbers)} |")
    return "\n".join(lines)


def recipes() -> str:
    """The recipes and resources of the built-in sizes, as the package has them."""
    import gpas_cli.grid

    text = (Path(gpas_cli.grid.__file__).parent / "sizes.yaml").read_text("utf-8")
    return f"```yaml\n{text[text.index('recipes:') :]}```"


def schemes() -> str:
    """The built-in normalisation schemes: the equation of each, without and with a gate, at 12 layers."""
    from gpas_cli.spec.equation import equations
    from gpas_cli.spec.norm import SCHEMES
    from gpas_cli.spec.parse_cell import parse_model

    def written(name: str, gate: str) -> str:
        runs = equations(parse_model({"size": "71m", "norm": name, "gate": gate}))
        if len(runs) == 1:
            return f"`{runs[0][2]}`"
        if len(runs) > 2:  # one equation for each layer
            return f"`{runs[1][2]}` in layer {runs[1][0]}"
        return "; ".join(f"`{text}` in layers {first}-{last}" for first, last, text in runs)

    lines = ["| `norm` | title | without gate | with `gate: gpas` |", "|---|---|---|---|"]
    lines += [f"| `{n}` | {cls.title} | {written(n, 'none')} | {written(n, 'gpas')} |" for n, cls in SCHEMES.items()]
    return "\n".join(lines)


def metrics() -> str:
    """What `table: {value: ...}` may name."""
    from gpas_cli.spec import extensions

    lines = ["| `value` | what | unit | better | stage |", "|---|---|---|---|---|"]
    lines += [f"| `{m.name}` | {m.title} | {m.unit} | {m.better} | {m.stage} |" for m in extensions.metrics().values()]
    return "\n".join(lines)


# The database


def tables() -> str:
    """Every table of the results database with its columns."""
    from gpas_cli.store import schema

    classes = {mapper.local_table.name: mapper.class_ for mapper in schema.Base.registry.mappers}
    lines: list[str] = []
    for table in schema.Base.metadata.sorted_tables:
        own = classes[table.name].__dict__.get("__doc__") or ""
        lines += [f"## `{table.name}`", "", *_paragraphs(own), "", "| column | type | key |", "|---|---|---|"]
        for column in table.columns:
            null = " or null" if column.nullable else ""
            keys = ["primary"] if column.primary_key else []
            keys += [f"refers to `{key.target_fullname}`" for key in column.foreign_keys]
            lines.append(f"| `{column.name}` | {_column_type(column.type)}{null} | {', '.join(keys)} |")
        lines.append("")
    return "\n".join(lines)


def _column_type(kind: Any) -> str:
    names = {
        "String": "text",
        "Text": "text",
        "Integer": "integer",
        "BigInteger": "64-bit integer",
        "Double": "double",
        "Real": "double",
        "Boolean": "boolean",
        "JSON": "JSON",
    }
    return names[type(kind).__name__]


def _joined(text: str | None) -> str:
    return " ".join((text or "").split())


def _docstring(cls: type) -> list[str]:
    """The paragraphs of a dataclass's docstring. A line that begins with "field:" begins a paragraph."""
    name = "|".join(field.name for field in dataclasses.fields(cls))
    field_line = re.compile(rf"`?({name})`?(, `?({name})`?)*: ")
    lines: list[str] = []
    for line in _paragraphs(cls.__dict__.get("__doc__") or ""):
        lines += ["", line] if field_line.match(line) else [line]
    return lines


def _paragraphs(docstring: str) -> list[str]:
    """A docstring as Markdown; what it indents, such as a drawing, becomes a code block."""
    return inspect.cleandoc(docstring).splitlines()


# The notebook


def notebook() -> str:
    """The cells of the notebook, with its code in fences and the text of its outputs."""
    parts = []
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", ()):
            parts.append(f"```text\n{''.join(output['data']['text/plain'])}\n```")
    return "\n\n".join(parts)


def extension() -> str:
    """The files of the extension that is the example."""
    folder = Path(__file__).parents[1] / "gpas_cli/extensions/quantised"
    sources = {name: (folder / name).read_text("utf-8") for name in ("__init__.py", "stage.py")}
    return "\n\n".join(f'```python title="{name}"\n{source}```' for name, source in sources.items())


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "options": options,
    "json": json_documents,
    "events": events,
    "experiments": experiments,
    "settings": settings,
    "sizes": sizes,
    "recipes": recipes,
    "schemes": schemes,
    "metrics": metrics,
    "tables": tables,
    "notebook": notebook,
    "extension": extension,
}
