"""``python -m mlxctl``."""

from mlxctl.main import main

main()
