"""Bundle a module with the definitions it needs from this package into one source file.

    the whole root module ─► names it uses ─► their definitions ─► names these use ─► ...

Modules are ordered by import, definitions as in their module. Imports of this package are removed, all others move to
the top. If two modules define the same name, the one outside the root module's folder gets its folder as a prefix.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_Name = tuple[str, str]  # a module and a name defined in it
_Import = tuple[str, str, str]  # a module, the imported name ("" for the module itself), the local name


@dataclass
class _Module:
    """One parsed source file: its definitions and imports."""

    name: str
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    ours: dict[str, _Name] = field(default_factory=dict)  # local name -> its definition in this package
    outside: dict[str, _Import] = field(default_factory=dict)  # local name -> its import from elsewhere

    def __post_init__(self) -> None:
        for statement in self.tree.body:
            self._take(statement)

    @cached_property
    def source(self) -> str:
        return _path(self.name).read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def room(self) -> str:
        return self.name.split(".")[1]

    def _take(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                bound = alias.asname or alias.name.split(".")[0]
                self.outside[bound] = (alias.name, "", bound)
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                self._import(statement.module or "", alias)
        elif isinstance(statement, ast.ClassDef | ast.FunctionDef):
            self.definitions[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            self.definitions.update((name.id, statement) for name in names if isinstance(name.ctx, ast.Store))

    def _import(self, module: str, alias: ast.alias) -> None:
        bound = alias.asname or alias.name
        if module.split(".")[0] == _PACKAGE.name:
            self.ours[bound] = (module, alias.name)
        elif module != "__future__":
            self.outside[bound] = (module, alias.name, bound)


class Bundle:
    """The file for one root module; `text()` is its source."""

    def __init__(self, root: str):
        self.root = root
        self._modules: dict[str, _Module] = {}
        self._needed: set[_Name] = set()
        self._imports: set[_Import] = set()
        for name in self._module(root).definitions:
            self._need((root, name))
        self._renamed = self._clashes()

    def text(self) -> str:
        """Return the header, the imports, then each module's definitions below its docstring as a comment."""
        docstring = ast.get_docstring(self._module(self.root).tree, clean=False)
        head = [f'"""{docstring}"""', "from __future__ import annotations", *_import_blocks(self._imports)]
        parts = ["\n\n".join(head)]
        order: dict[str, _Module] = {}
        self._visit(self.root, order)
        for module in order.values():
            written = list(self._definitions(module))
            if written:
                title = "" if module.name == self.root else _comment(module)
                parts.append("\n\n\n".join([title, *written]).strip())
        return "\n\n\n".join(parts) + "\n"

    def _module(self, name: str) -> _Module:
        if name not in self._modules:
            self._modules[name] = _Module(name)
        return self._modules[name]

    def _need(self, name: _Name) -> None:
        if name in self._needed:
            return
        self._needed.add(name)
        module = self._module(name[0])
        for node in ast.walk(module.definitions[name[1]]):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE.name):
                raise ValueError(f"{name[0]}.{name[1]} cannot be bundled: it imports {node.module} inside its body")
            if isinstance(node, ast.Name) and node.id in module.outside:
                self._imports.add(module.outside[node.id])
            reference = self._reference(module, node)
            if reference is not None:
                self._need(reference)

    def _reference(self, module: _Module, node: ast.AST) -> _Name | None:
        """Return what a name (`X`) or an attribute of a module (`parse.X`) refers to in this package."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in module.ours:
            imported = ".".join(module.ours[node.value.id])
            return self._origin((imported, node.attr)) if _is_module(imported) else None
        if not isinstance(node, ast.Name):
            return None
        if node.id in module.definitions:
            return module.name, node.id
        if node.id in module.ours and not _is_module(".".join(module.ours[node.id])):
            return self._origin(module.ours[node.id])
        return None

    def _origin(self, name: _Name) -> _Name:
        """Return where a name that a module imports is defined."""
        module = self._module(name[0])
        return name if name[1] in module.definitions else self._origin(module.ours[name[1]])

    def _clashes(self) -> dict[_Name, str]:
        count = Counter(name for _, name in self._needed)
        home = self._module(self.root).room
        renamed = {}
        for module, name in self._needed:
            room = self._module(module).room
            if count[name] > 1 and room != home:
                renamed[module, name] = f"_{room}{name}" if name.startswith("_") else f"{room.title()}{name}"
        final = [renamed.get(name, name[1]) for name in self._needed]
        bound = [local for _, _, local in self._imports]
        if twice := [name for name, times in Counter([*final, *bound]).items() if times > 1]:
            raise ValueError(f"two modules of {_PACKAGE.name} define {', '.join(sorted(twice))}")
        return renamed

    def _visit(self, name: str, order: dict[str, _Module]) -> None:
        """Add the modules that `name` imports to `order`, then `name` itself."""
        module = self._module(name)
        for origin, attribute in module.ours.values():
            imported = f"{origin}.{attribute}" if _is_module(f"{origin}.{attribute}") else origin
            if imported in self._modules and imported not in order:
                self._visit(imported, order)
        order[name] = module

    def _definitions(self, module: _Module) -> Iterator[str]:
        statements = {id(s): (name, s) for name, s in module.definitions.items() if (module.name, name) in self._needed}
        for name, statement in statements.values():
            yield self._written(module, name, statement)

    def _written(self, module: _Module, name: str, statement: ast.stmt) -> str:
        """Return the source of a definition and the comments above it, with clashing names replaced."""
        lines = module.source.splitlines()
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(d.lineno for d in decorators)]) - 1
        for row, column, old, new in sorted(self._edits(module, name, statement), reverse=True):
            # Columns count UTF-8 bytes.
            line = lines[row].encode()
            assert line[column : column + len(old)] == old.encode()
            lines[row] = (line[:column] + new.encode() + line[column + len(old) :]).decode()
        while first and lines[first - 1].startswith("#"):
            first -= 1
        return "\n".join(lines[first : statement.end_lineno])

    def _edits(self, module: _Module, name: str, statement: ast.stmt) -> Iterator[tuple[int, int, str, str]]:
        """Yield (row, column, old, new) for every name in `statement` that is renamed in the bundle."""
        own = self._renamed.get((module.name, name))
        if own and isinstance(statement, ast.ClassDef | ast.FunctionDef):
            column = len("class " if isinstance(statement, ast.ClassDef) else "def ")
            yield statement.lineno - 1, column, name, own
        for node in ast.walk(statement):
            reference = self._reference(module, node)
            if reference is None or not isinstance(node, ast.Name | ast.Attribute):
                continue
            old = ast.unparse(node)
            new = self._renamed.get(reference, reference[1])
            if new != old:
                yield node.lineno - 1, node.col_offset, old, new


def _import_blocks(imports: set[_Import]) -> Iterator[str]:
    """Yield the imports of the standard library, then all others; `import X` before `from X import`, like isort."""
    for standard in (True, False):
        own = sorted(i for i in imports if (i[0].split(".")[0] in sys.stdlib_module_names) == standard)
        lines = [
            f"import {module}" + (f" as {local}" if local != module else "") for module, name, local in own if not name
        ]
        names = defaultdict(list)
        for module, name, local in own:
            if name:
                names[module].append(name if name == local else f"{name} as {local}")
        yield "\n".join([*lines, *(f"from {module} import {', '.join(names[module])}" for module in sorted(names))])


def _comment(module: _Module) -> str:
    """Return the path and the docstring of a module as a comment."""
    docstring = ast.get_docstring(module.tree, clean=False) or ""
    lines = [_path(module.name).relative_to(_PACKAGE.parent).as_posix(), *docstring.strip().splitlines()]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def _path(module: str) -> Path:
    return _PACKAGE.parent / (module.replace(".", "/") + ".py")


def _is_module(name: str) -> bool:
    return _path(name).is_file()
