"""``python -m mlxceld``."""

from mlxceld.cli import main

main()
