"""The plugin files that experiments.yaml names: executed if they are trusted, and joined with what is built in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from gpas_cli.errors import InvalidExperiments, Problem
from gpas_cli.grid.document import Node
from gpas_cli.grid.readers import add_problem, read_list, read_text
from gpas_cli.spec.norm import Scheme
from gpas_cli.spec.plugins import Plugin, known_schemes, known_stage_kinds, plugin_of
from gpas_cli.spec.stage import StageKind
from gpas_cli.trust import suspicion

PATH = ("plugins",)
T = TypeVar("T", type[Scheme], StageKind)


def known_plugins(node: Node | None, config: Path, problems: list[Problem]) -> Plugin:
    """Return the schemes and stage kinds of the package, of installed packages and of the files that `node` names.

    The files are executed; what is wrong with them is added to `problems`.
    """
    schemes, kinds = known_schemes(), known_stage_kinds()
    for item in read_list(node, PATH, problems):
        name = read_text(item, PATH, problems)
        plugin = _plugin(name, config, item, problems) if name else Plugin()
        _add(plugin.schemes, schemes, f"{name}: the scheme", item, problems)
        _add(plugin.stage_kinds, kinds, f"{name}: the stage", item, problems)
    return Plugin(schemes, kinds)


def _add(new: Mapping[str, T], found: dict[str, T], what: str, item: Node, problems: list[Problem]) -> None:
    for name, one in new.items():
        if name in found:
            origin = found[name].origin
            owner = origin.name if origin else "gpas_cli"
            add_problem(problems, PATH, f"{what} '{name}' already exists in {owner}", item)
        else:
            found[name] = one


def _plugin(name: str, config: Path, item: Node, problems: list[Problem]) -> Plugin:
    """Return what the file defines; nothing after adding to `problems`."""
    try:
        path = (config.parent / name).resolve()  # what is checked is what is executed, wherever a link leads later
        if reason := suspicion(config, path):
            add_problem(problems, PATH, f"{name} was not executed: {reason}", item)
        elif not path.is_file():
            add_problem(problems, PATH, f"{name} is not a file", item)
        else:
            return plugin_of(name, path.read_text("utf-8"))
    except OSError as error:
        add_problem(problems, PATH, f"{name}: {error.strerror}", item)
    except RuntimeError as error:  # from `resolve` before Python 3.13; what a plugin raises is an InvalidExperiments
        add_problem(problems, PATH, f"{name}: {error}", item)
    except UnicodeDecodeError:
        add_problem(problems, PATH, f"{name} is not UTF-8 text", item)
    except InvalidExperiments as error:
        for problem in error.problems:
            add_problem(problems, PATH, problem.message, item)
    return Plugin()
