"""Write a network as a folder that `transformers` loads: as plain LLaMA if its weights allow it, else with its code.

config.json             the configuration; for a network with its own code also the wiring of every layer
generation_config.json  the special tokens for `generate`
model.safetensors       the weights under the names of Hugging Face LLaMA; `gpas_cli.model.llama` names all others
modeling_gpas.py        the code of a network that is not plain LLaMA (`trust_remote_code=True`)

`Bundle` makes that file of a module and the definitions that it needs from this package.

    the whole root module ─► names it uses ─► their definitions ─► names these use ─► ...

Modules are ordered by import, definitions as in their module. Imports of this package are removed, all others move to
the top. No two modules may define the same name. The file runs with Python 3.10, too.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from gpas_cli.errors import GpasError
from gpas_cli.model.llama import Llama
from gpas_cli.spec.parse import plain

_PACKAGE = Path(__file__).parents[2]
_Name = tuple[str, str]  # a module and a name defined in it
_Import = tuple[str, str, str]  # a module, the imported name ("" for the module itself), the local name
_FOR_TYPES = re.compile(r"^@dataclass_transform\(.*\)\n", re.MULTILINE)  # read by type checkers alone; of Python 3.11
CODE = "modeling_gpas"
CLASS = "GpasForCausalLM"


@dataclass
class _Module:
    """One parsed source file: its definitions and imports."""

    name: str
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    ours: dict[str, _Name] = field(default_factory=dict)  # local name -> its definition in this package
    outside: dict[str, _Import] = field(default_factory=dict)  # local name -> its import from elsewhere

    def __post_init__(self) -> None:
        self.path = _PACKAGE.parent / (self.name.replace(".", "/") + ".py")
        self.source = _FOR_TYPES.sub("", self.path.read_text(encoding="utf-8"))
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


def llama_files(network: Llama, shared: Mapping[str, Any]) -> dict[str, str]:
    """Return the text files beside the weights of `network`, a plain LLaMA such as `fold.fold` makes: name -> text.

    LLaMA with queries and keys normalised by head is Qwen3, with biases on queries, keys and values Qwen2.
    """
    size, family = network.spec.size, network.spec.family
    kind = "Qwen3" if family.qk_norm == "head" else "Qwen2" if family.qkv_bias else "Llama"
    slowed = {"rope_type": "llama3" if size.rope_context else "linear", "factor": size.rope_factor}
    if size.rope_context:
        slowed |= {"low_freq_factor": size.rope_low, "high_freq_factor": size.rope_high}
        slowed |= {"original_max_position_embeddings": size.rope_context}
    config = {
        "architectures": [f"{kind}ForCausalLM"],
        "model_type": kind.lower(),
        "intermediate_size": size.ffn,
        "num_key_value_heads": size.kv_heads or size.heads,
        "head_dim": size.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": size.eps,
        "rope_theta": size.rope_theta,
        **({"rope_scaling": slowed} if size.rope_factor > 1 else {}),
        "attention_bias": False,
        "mlp_bias": False,
        **_common(network, shared),
    }
    return {"config.json": _json(config), "generation_config.json": _generation(shared)}


def bundled_files(network: Llama, shared: Mapping[str, Any]) -> dict[str, str]:
    """Return the text files beside the weights of any network, with its specification and code: name -> text."""
    model = network.spec
    config = {
        "architectures": [CLASS],
        "model_type": "gpas",
        "auto_map": {"AutoConfig": f"{CODE}.GpasConfig", "AutoModelForCausalLM": f"{CODE}.{CLASS}"},
        **_common(network, shared),
        # The wiring has the constants of the depth.
        "network": replace(model, parametrisation=replace(model.parametrisation, base_layers=0)).to_mapping(),
        "wiring": [plain(model.wiring(layer)) for layer in range(1, model.size.layers + 1)],
    }
    return {
        "config.json": _json(config),
        "generation_config.json": _generation(shared),
        f"{CODE}.py": Bundle("gpas_cli.extensions.export.remote").text(),
    }


def _common(network: Llama, shared: Mapping[str, Any]) -> dict[str, Any]:
    size = network.spec.size
    return {
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "tie_word_embeddings": network.spec.family.tied,
        "torch_dtype": str(network.model.embed_tokens.weight.dtype).removeprefix("torch."),
        **shared,
    }


def _generation(shared: Mapping[str, Any]) -> str:
    """Return generation_config.json: the special tokens for `generate`."""
    return _json({name: value for name, value in shared.items() if name.endswith("_token_id")})


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def check_target(folder: Path) -> None:
    """Raise GpasError unless `folder` is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise GpasError(f"{folder} already exists and is not an empty folder; name a new one")


def write_folder(folder: Path, weights: Mapping[str, Tensor], files: Mapping[str, str]) -> None:
    """Write the weights and `files`, name -> text, to `folder`, which appears complete or not at all.

    Raises GpasError if the folder exists and is not empty, or cannot be written.
    """
    check_target(folder)
    aside = folder.parent / f".{folder.name}.{os.getpid()}"
    try:
        aside.mkdir(parents=True)
        for name, text in files.items():
            (aside / name).write_text(text, encoding="utf-8")
        weights = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
        # transformers refuses files without this metadata.
        save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
        (aside / "model.safetensors").chmod(0o644)  # safetensors writes files that only their owner can read
        aside.replace(folder)
    except (OSError, SafetensorError) as error:
        raise GpasError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
