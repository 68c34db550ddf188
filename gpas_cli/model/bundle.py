"""Bundle a module with the definitions it needs from this package into one source file.

    the whole root module ─► names it uses ─► their definitions ─► names these use ─► ...

Modules are ordered by import, definitions as in their module. Imports of this package are removed, all others move to
the top. No two modules may define the same name.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
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
        self.path = _PACKAGE.parent / (self.name.replace(".", "/") + ".py")
        self.source = self.path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.source)
        self.docstring = ast.get_docstring(self.tree, clean=False) or ""
        for statement in self.tree.body:
            self._take(statement)

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

    def written(self, statement: ast.stmt) -> str:
        """Return the source of a definition and the comments above it."""
        lines = self.source.splitlines()
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))]) - 1
        while first and lines[first - 1].startswith("#"):
            first -= 1
        return "\n".join(lines[first : statement.end_lineno])

    def comment(self) -> str:
        """Return the path and the docstring as a comment."""
        lines = [self.path.relative_to(_PACKAGE.parent).as_posix(), *self.docstring.strip().splitlines()]
        return "\n".join(f"# {line}".rstrip() for line in lines)


class Bundle:
    """The file for one root module; `text()` is its source.

    Raises ValueError if a needed definition imports from this package in its body, or if two have the same name.
    """

    def __init__(self, root: str):
        self.root = root
        self._modules: dict[str, _Module] = {}
        self._needed: set[_Name] = set()
        self._imports: set[_Import] = set()
        for name in self._module(root).definitions:
            self._need((root, name))
        bound = [*(name for _, name in self._needed), *(local for _, _, local in self._imports)]
        if twice := sorted(name for name, times in Counter(bound).items() if times > 1):
            raise ValueError(f"two modules of {_PACKAGE.name} define {', '.join(twice)}")

    def text(self) -> str:
        """Return the header, the imports, then each module's definitions below its docstring as a comment."""
        head = [f'"""{self._module(self.root).docstring}"""', "from __future__ import annotations"]
        parts = ["\n\n".join([*head, *_import_blocks(self._imports)])]
        order: dict[str, _Module] = {}
        self._visit(self.root, order)
        for module in order.values():
            own = [module.definitions[name] for name in module.definitions if (module.name, name) in self._needed]
            written = [module.written(statement) for statement in dict.fromkeys(own)]
            if written:
                title = "" if module.name == self.root else module.comment()
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
            if isinstance(node, ast.Name) and (node.id in module.definitions or node.id in module.ours):
                self._need(self._origin((module.name, node.id)))

    def _origin(self, name: _Name) -> _Name:
        """Return where a name of a module is defined."""
        module = self._module(name[0])
        return name if name[1] in module.definitions else self._origin(module.ours[name[1]])

    def _visit(self, name: str, order: dict[str, _Module]) -> None:
        """Add the modules that `name` imports to `order`, then `name` itself."""
        module = self._module(name)
        for imported, _ in module.ours.values():
            if imported in self._modules and imported not in order:
                self._visit(imported, order)
        order[name] = module


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
