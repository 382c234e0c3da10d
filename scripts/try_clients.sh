#!/bin/sh
# Runs unmodified clients against daemons that it starts, and prints what worked.
#
#   sh scripts/try_clients.sh FOLDER
#
# FOLDER holds the clients: `npm install --prefix FOLDER/npm …` and a virtual environment FOLDER/py;
# docs/clients.md names the packages. What is not installed is skipped. Loopback only.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
exec "$python" "$root/scripts/clients/run.py" "$@"
