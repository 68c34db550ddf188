"""The paths of a project (experiments file, run directories, token cache, database) and of files that are installed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.structure import Frozen

CONFIG_NAME = "experiments.yaml"
# What GPAS_DB may hold besides a path: a URL, also a damaged one, or the words with which libpq names a server. Such a
# text may have a password, so it is not taken for the name of a file, which is created and printed.
_ADDRESS = re.compile(
    r"://|:[^/]*@|^(\w+:)?(postgres|mysql|mariadb|mssql|oracle|sqlite)[\w+]*(:|//)"
    r"|^\s*(host|port|user|dbname|service)\w*\s*=|\bpass\w*\s*=",
    re.IGNORECASE,
)


class Project(Frozen):
    """A directory with an experiments.yaml. The run directories are authoritative: the database is rebuilt from them.

    `database` is an SQLAlchemy URL or the absolute path of an SQLite file. It is kept as a path, not as a URL, because
    in a URL `?`, `#` and `%` have a special meaning. A URL may contain a password; `store.session.name_of` hides it.

    Environment: GPAS_CONFIG names the experiments file. GPAS_RUNS_DIR, GPAS_CACHE and GPAS_DB (an SQLAlchemy URL or a
    path) replace the defaults beside it: `runs/`, `cache/` and `gpas.db`.
    """

    config: Path
    runs: Path
    cache: Path
    database: str

    @classmethod
    def find(
        cls, config: Path | None = None, environ: Mapping[str, str] = os.environ, *, required: bool = True
    ) -> Project:
        """Return the project of `config`, of GPAS_CONFIG, or of the nearest experiments.yaml here or in a folder above.

        Raises GpasError if there is none. If none is named and none `required`, returns the project that `gpas init`
        would create here. Raises GpasError if a path is not UTF-8, too: records and the database could not hold it.
        """
        named = config or (Path(environ["GPAS_CONFIG"]) if environ.get("GPAS_CONFIG") else None)
        above = (folder / CONFIG_NAME for folder in (Path.cwd(), *Path.cwd().parents))
        path = named or next((path for path in above if path.is_file()), None)
        if path is None and not required:
            path = Path.cwd() / CONFIG_NAME
        elif path is None or not path.is_file():
            if path is not None and path.exists():
                raise GpasError(f"{named} is not a file; name the experiments file")
            what = f"{named} does not exist" if named else f"no {CONFIG_NAME} here or in any folder above"
            raise GpasError(f"{what}; `gpas init` writes one")
        path = path.resolve()
        database = environ.get("GPAS_DB") or str(path.parent / "gpas.db")
        is_path = database.startswith("/") or not _ADDRESS.search(database)
        return cls(
            config=utf8_path(path),
            runs=utf8_path(Path(environ.get("GPAS_RUNS_DIR") or path.parent / "runs").absolute()),
            cache=utf8_path(Path(environ.get("GPAS_CACHE") or path.parent / "cache").absolute()),
            database=str(utf8_path(Path(database).absolute())) if is_path else database,
        )

    @property
    def variables(self) -> dict[str, str]:
        """The variables with which a job finds this project; jobs never open the database."""
        return {"GPAS_CONFIG": str(self.config), "GPAS_RUNS_DIR": str(self.runs), "GPAS_CACHE": str(self.cache)}


def utf8_path(path: Path) -> Path:
    """Return `path`. Raises GpasError if it is not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise GpasError(f"the path {str(path)!a} is not UTF-8; rename the folder, or name another") from error
    return path


def hub_cache() -> Path:
    """Return the folder where huggingface_hub keeps what it downloads."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub"))


def packaged(name: str) -> Path:
    """Return the path of `experiments.yaml` or `migrations`, in the installed package or at the top of a checkout."""
    package = Path(__file__).parent
    installed = package / "packaged" / name
    return installed if installed.exists() else package.parent / name
