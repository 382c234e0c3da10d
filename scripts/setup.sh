#!/bin/sh
# Make the virtual environment of the checkout, with the MLX that fits this machine.
#
#   sh scripts/setup.sh FOLDER
#
# PYTHON names the interpreter; by default it is the first that is found of those below.
set -eu
venv=$1

say() { printf '%s\n' "$*" >&2; }

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for name in "${PYTHON:-}" python3.13 python3.12 python3.11 python3.14 python3; do
        if [ -n "$name" ] && usable "$name"; then
            printf '%s' "$name"
            return
        fi
    done
    say "no Python 3.11 or later found: install one, or name it: make PYTHON=/path/to/python"
    exit 1
}

has_nvidia() { [ -e /dev/nvidiactl ] || nvidia-smi -L >/dev/null 2>&1; }

case $(uname -s) in
    Darwin) extras=dev ;;
    *) if has_nvidia; then extras=cuda,dev; else extras=cpu,dev; fi ;;
esac

if ! usable "$venv/bin/python"; then
    python=$(find_python)
    say "making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv" || {
        say "cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"
        exit 1
    }
fi

say "installing mlxceld[$extras]; the first time this takes a few minutes"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e ".[$extras]"

# MLX computes on a Linux CPU with whatever matrix library it finds, and its own is very slow.
blas() { "$venv/bin/python" -c '
from mlxceld.models.blas import interpose
report = interpose()
print(report.text)
raise SystemExit(not report.fast)'; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

if ! blas >/dev/null 2>&1 && command -v apt-get >/dev/null && as_root true 2>/dev/null; then
    say "installing OpenBLAS"
    as_root apt-get install -y -qq libopenblas0-pthread >/dev/null 2>&1 ||
        { as_root apt-get update -qq && as_root apt-get install -y -qq libopenblas0-pthread; } \
            >/dev/null 2>&1 || true
fi
blas >&2 || say "everything works without it, only slowly"
