"""Groups of commands of which the first is meant where none is named: `gpas run GRID` is `gpas run grid GRID`."""

from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup

from gpas_cli.cli.options import complete_grid


class WithUsual(TyperGroup):
    """A command group that passes words to its first command unless they begin with the name of another one.

    An option that only another command of the group has is refused with the name of that command.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        if args[0] not in known if args else not (self.no_args_is_help or ctx.resilient_parsing):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, words = super().resolve_command(ctx, args)
        for word in words[: words.index("--") if "--" in words else None]:
            option = word.partition("=")[0]
            owners = [other for other, one in self.commands.items() if option in _options(one)]
            if owners and name not in owners:
                ctx.fail(f"{option} is an option of `{ctx.command_path} {owners[0]}`")
        return name, command, words

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands, the grids and the options of the first command that begin with `incomplete`."""
        item = type(super().shell_complete(ctx, "")[0])
        usual = next(iter(self.commands.values()))
        names = [*complete_grid(incomplete), *(name for name in _options(usual) if name.startswith(incomplete or " "))]
        return [*super().shell_complete(ctx, incomplete), *map(item, names)]


def _options(command: Any) -> Sequence[str]:
    """Return the words of a command's options that begin with --."""
    return [word for parameter in command.params for word in parameter.opts if word.startswith("--")]
