#!/bin/sh
# Install this checkout, with the extras that are named, into a virtual environment, unless that has been done:
#
#   tools/install.sh FOLDER EXTRA[,EXTRA...]
#
# uv, if it is on the path, installs what uv.lock names, with its hashes, and fetches a Python if it must. Otherwise pip
# installs the versions of constraints.txt.
# Environment: PYTHON, the interpreter; an environment of another one is made anew. TORCH_INDEX, a package index to take
# torch from in place of PyPI, whose build for Linux needs gigabytes of CUDA; pip installs then, since the lock knows no
# other build.
set -eu
cd "$(dirname "$0")/.."
venv=$1 extras=$2
stamp=$venv/.installed-$extras
quiet=
[ -t 1 ] || quiet=--quiet # on a terminal both show what they fetch

version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none; }
serves() { case $1 in none | 2.* | 3.? | 3.10) return 1 ;; esac; }
has=$(version "$venv/bin/python")

done_before() {
    [ -e "$stamp" ] || return 1
    for file in pyproject.toml constraints.txt uv.lock; do [ "$stamp" -nt "$file" ] || return 1; done
    [ -z "${PYTHON-}" ] || [ "$has" = "$(version "$PYTHON")" ]
}

with_uv() {
    echo "Installing $extras into $venv with uv. torch is large: this takes 1 to 10 minutes the first time."
    set -- ${PYTHON:+--python "$PYTHON"}
    for extra in $(echo "$extras" | tr , ' '); do set -- "$@" --extra "$extra"; done
    UV_PROJECT_ENVIRONMENT=$venv uv sync $quiet --locked --inexact "$@"
}

with_pip() {
    python=${PYTHON:-python3}
    if [ -z "${PYTHON-}" ] && serves "$has"; then python=$venv/bin/python; fi
    wants=$(version "$python")
    if ! serves "$wants"; then
        found="$python is $("$python" --version 2>&1)" || found="there is no $python"
        echo "gpas_cli needs Python 3.11 or newer; $found."
        echo "Name another one: make quickstart PYTHON=python3.12"
        echo "Or install uv, which fetches a Python: https://docs.astral.sh/uv"
        exit 2
    fi >&2
    echo "Installing $extras into $venv with pip. torch is large: this takes 2 to 10 minutes the first time."
    if [ "$has" != "$wants" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --clear "$venv"
    fi
    "$venv/bin/python" -m pip install $quiet --disable-pip-version-check --constraint constraints.txt \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --editable ".[$extras]"
}

done_before && exit
if [ -z "${TORCH_INDEX-}" ] && command -v uv >/dev/null; then with_uv; else with_pip; fi
touch "$stamp"
