"""What installs this checkout: tools/install.sh, uv.lock, constraints.txt, the Dockerfile, and lines on pages."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from cases import file_text
from documentation import ROOT, blocks
from programs import program

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKED = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"]
BY_ITS_INDEX = ("cuda", "nvidia", "triton", "gpas-cli")  # of these pip takes what its build of torch needs
REQUIREMENT = re.compile(r"^([\w.-]+)(?:\[.*\])?(.*)$")
PYTHON = file_text("programs/python.sh")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_is_of_the_declared_requirements() -> None:
    declared = [
        *PROJECT["dependencies"],
        *(one for extra in PROJECT["optional-dependencies"].values() for one in extra),
    ]
    locked = next(package for package in LOCKED if package["name"] == "gpas-cli")["metadata"]["requires-dist"]
    assert {(one["name"], one.get("specifier", "")) for one in locked} == {
        (normal(name), specifier) for name, specifier in (REQUIREMENT.match(one).groups() for one in declared)
    }


def test_the_lock_has_a_hash_for_every_file_and_names_only_the_public_index() -> None:
    for package in LOCKED:
        files = [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
        assert all(one["hash"].startswith("sha256:") for one in files)
        assert all(one["url"].startswith("https://files.pythonhosted.org/") for one in files)
        assert files or package["name"] == "gpas-cli"


def test_pip_installs_the_locked_versions() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = [tuple(line.partition(" ;")[0].split("==")) for line in lines]
    locked = [(one["name"], one["version"]) for one in LOCKED if not one["name"].startswith(BY_ITS_INDEX)]
    assert sorted(pinned) == sorted(locked)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout of the script alone, on whose path python3 is Python 3.10 and python3.12 is what it says."""
    for name in ("pyproject.toml", "constraints.txt", "uv.lock"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/install.sh", tmp_path / "tools")
    for name, version in (("python3", "3.10"), ("python3.12", "3.12")):
        program(tmp_path / "path" / name, PYTHON.replace("VERSION", version))
    for name in ("sh", "cp", "mkdir", "touch", "dirname", "tr"):
        (tmp_path / "path" / name).symlink_to(shutil.which(name))
    return tmp_path


def install(checkout: Path, extras: str = "figures", **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(checkout / "path"), **settings}
    command = [checkout / "tools/install.sh", ".venv", extras]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def log(checkout: Path) -> str:
    """Return the commands that have installed something since the last call."""
    path = checkout / "log"
    text = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    return text


def test_an_old_python_is_refused_in_the_first_line(checkout: Path) -> None:
    refused = install(checkout)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines()[0] == "gpas_cli needs Python 3.11 or newer; python3 is Python 3.10.1."
    assert "PYTHON=python3.12" in refused.stderr
    assert not (checkout / ".venv").exists()
    assert install(checkout, PYTHON="python3.13").stderr.startswith(
        "gpas_cli needs Python 3.11 or newer; there is no python3.13."
    )


def test_pip_installs_once_with_the_constraints(checkout: Path) -> None:
    assert install(checkout, PYTHON="python3.12").returncode == 0
    assert log(checkout) == (
        ".venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "
        "--editable .[figures]\n"
    )
    install(checkout)  # the environment's Python serves, whatever python3 is
    assert log(checkout) == ""
    install(checkout, "figures,dev", TORCH_INDEX="https://somewhere/cpu")
    assert "--extra-index-url https://somewhere/cpu --editable .[figures,dev]" in log(checkout)
    (checkout / "pyproject.toml").touch()
    os.utime(checkout / ".venv/.installed-figures", (1, 1))
    install(checkout)
    assert "--editable .[figures]" in log(checkout)


@pytest.mark.parametrize("settings", [{"PYTHON": "python3.12"}, {}])
def test_an_environment_of_an_old_python_is_made_anew(checkout: Path, settings: dict[str, str]) -> None:
    program(checkout / ".venv/bin/python", PYTHON.replace("VERSION", "3.10"))
    (checkout / ".venv/.installed-figures").touch()
    if not settings:  # python3 has been upgraded since a try that failed
        (checkout / ".venv/.installed-figures").unlink()
        program(checkout / "path/python3", PYTHON.replace("VERSION", "3.12"))
    assert install(checkout, **settings).returncode == 0
    assert "echo 3.12" in (checkout / ".venv/bin/python").read_text()
    assert log(checkout)


def test_uv_installs_from_the_lock(checkout: Path) -> None:
    program(checkout / "path/uv", 'echo "$UV_PROJECT_ENVIRONMENT uv $*" >>log\nmkdir -p .venv')
    assert install(checkout, "figures,dev").returncode == 0
    assert log(checkout) == ".venv uv sync --quiet --locked --inexact --extra figures --extra dev\n"
    install(checkout, PYTHON="python3.12")
    assert log(checkout) == ".venv uv sync --quiet --locked --inexact --python python3.12 --extra figures\n"
    install(checkout, PYTHON="python3.12", TORCH_INDEX="https://somewhere/cpu")
    assert "pip install" in log(checkout)


def installing() -> list[str]:
    """Return the lines of the pages that install, or run what is installed, other than with make."""
    joined = (text.replace("\\\n", " ") for language in ("bash", "dockerfile") for _, text in blocks(language))
    lines = [line for text in joined for line in text.splitlines()]
    return [line for line in lines if re.match(r"(uv|pip|pipx|docker|apptainer) ", line)]


def test_the_lines_that_install_name_what_exists() -> None:
    found = installing()
    assert len(found) >= 9
    dockerfile = (ROOT / "Dockerfile").read_text()
    for text in (*found, dockerfile):
        for extras in re.findall(r"\.\[([\w,]+)\]", text):
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
        for extra in re.findall(r"--extra (\w+)", text):
            assert extra in PROJECT["optional-dependencies"]
    page = (ROOT / "docs/how-to/install.md").read_text()
    for argument in re.findall(r"--build-arg (\w+)=", page):
        assert f"ARG {argument}=" in dockerfile
    extras = re.search(r"'\.\[([\w,]+)\]'", dockerfile)[1].split(",")
    assert "The image has the extras " + ", ".join(f"`{one}`" for one in extras[:-1]) + f" and `{extras[-1]}`" in page
    for folder in re.findall(r"-v \S+?:(/[\w/]+)", page):
        assert folder in dockerfile


def buildah(*words: str, folder: Path) -> str:
    """Run buildah, which keeps its images in `folder` and needs no daemon; return what it prints."""
    command = ["buildah", "--root", folder / "images", "--runroot", folder / "run", *words]
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.release
@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0 or not all(map(shutil.which, ("buildah", "debootstrap"))),
                    reason="needs root, buildah and debootstrap")  # fmt: skip
def test_the_image_serves_a_user_that_it_does_not_know(tmp_path: Path) -> None:
    """A bare Debian, which has a user of UID 1000, stands for the image that Docker would fetch.

    TORCH_INDEX and BIND are those of tools/newcomer.sh.
    """
    base, work = tmp_path / "base", tmp_path / "work"
    subprocess.run([ROOT / "tools/newcomer.sh", tmp_path / "root", "true"], check=True)
    base.mkdir()
    subprocess.run(["tar", "-C", tmp_path / "root", "--exclude=./home", "-cf", base / "root.tar", "."], check=True)
    (base / "Dockerfile").write_text(
        "FROM scratch\nADD root.tar /\nRUN apt-get update && apt-get install -y python3-dev && id 1000\n"
    )
    name = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[0]
    buildah("bud", "--tag", name, str(base), folder=tmp_path)
    shown = [f"--volume={place}:{place}:ro" for place in ("/etc/ssl/certs", *os.environ.get("BIND", "").split())]
    index = f"--build-arg=TORCH_INDEX={os.environ.get('TORCH_INDEX', '')}"
    buildah("bud", "--pull-never", "--tag", "gpas", index, *shown, str(ROOT), folder=tmp_path)
    container = buildah("from", "--pull-never", "gpas", folder=tmp_path).strip()

    work.mkdir()
    os.chown(work, 1234, 1234)

    def gpas(*words: str) -> str:
        command = ["run", "--user", "1234:1234", f"--volume={work}:/work", container, "--", "gpas", *words]
        return buildah(*command, folder=tmp_path)

    gpas("init")
    checks = {one["what"]: one["status"] for one in json.loads(gpas("doctor", "--json"))["findings"]}
    assert (checks["torch"], checks["compiler"]) == ("ok", "ok")
    brief = ["quickstart", "optim.steps=4", "optim.warmup=1", "--where", "norm=pre"]
    gpas("run", "grid", *brief, "--yes")
    assert "[1/2 seeds]" not in gpas("table", *brief)
    gpas("figure", *brief, "--out", "loss.png")
    gpas("export", "quickstart/pre-gpas-s1+steps4+warmup1", "exported")
    assert {path.stat().st_uid for path in work.rglob("*")} == {1234}
