"""Writes what the table says into ``etc/mlxceld.yaml`` and the documentation.

``python -m mlxceld.config.reference`` rewrites the files below the current folder; a test holds
them to the table.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from mlxceld.config.resolve import CONFIG_ENV
from mlxceld.config.table import SETTINGS, Setting

YAML_FILE = Path("etc/mlxceld.yaml")
SETTINGS_DOC = Path("docs/configuration.md")
ENVIRONMENT_DOC = Path("docs/environment-variables.md")

BEGIN = "<!-- begin: written by python -m mlxceld.config.reference -->"
END = "<!-- end -->"


def yaml_text() -> str:
    """The settings file with every setting commented out at its default."""
    lines = [
        "# Settings of mlxceld, each commented out at its default: take off its # to change it.",
        "# A flag of `mlxceld serve` wins over an environment variable, and that over this file.",
        "# Check the file with: mlxceld check-config --config FILE",
    ]
    groups: dict[str, list[Setting]] = {}
    for row in SETTINGS.values():
        groups.setdefault(row.name.rpartition(".")[0], []).append(row)
    for group, rows in groups.items():
        indent = "  " if group else ""
        if group:
            # Not commented out, so that one line below can be used without a second.
            lines += ["", f"{group}:"]
        for row in rows:
            lines.append("")
            help_text = f"{row.help} {row.kind.expected[:1].upper()}{row.kind.expected[1:]}."
            lines += [f"# {indent}{line}" for line in textwrap.wrap(help_text, 96 - len(indent))]
            lines.append(f"#{indent}{row.name.rpartition('.')[2]}:{_yaml_default(row)}")
    return "\n".join(lines) + "\n"


def settings_table() -> str:
    """The Markdown table of settings."""
    return _table(
        ("setting", "flag", "environment", "default", "what it does"),
        (
            (
                f"`{row.name}`",
                ", ".join(f"`{flag}`" for flag in _flags(row)),
                ", ".join(f"`{name}`" for name in row.env),
                _escape(row.default_text()),
                _escape(row.help),
            )
            for row in SETTINGS.values()
        ),
    )


def environment_table() -> str:
    """The Markdown table of environment variables."""
    return _table(
        ("variable", "setting", "value", "default"),
        [
            (f"`{CONFIG_ENV}`", "(file)", "a path", "the first that exists"),
            *(
                (
                    f"`{variable}`",
                    f"`{row.name}`",
                    _escape((row.spec.env_kind or row.kind).expected),
                    _escape(row.default_text()),
                )
                for row in SETTINGS.values()
                for variable in row.env
            ),
        ],
    )


def with_table(document: str, table: str) -> str:
    """The document with the part between its marks replaced; raises ValueError without marks."""
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no part between {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n\n{table}\n{END}{tail}"


def rendered(root: Path) -> Iterator[tuple[Path, str]]:
    """Each file with the text that it should have."""
    yield root / YAML_FILE, yaml_text()
    for name, table in ((SETTINGS_DOC, settings_table()), (ENVIRONMENT_DOC, environment_table())):
        yield root / name, with_table((root / name).read_text(encoding="utf-8"), table)


def main() -> None:
    """Rewrite the files."""
    for path, text in rendered(Path.cwd()):
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")


def _flags(row: Setting) -> list[str]:
    return [row.flags[0], *(f"{flag}[=BOOL]" for flag in row.flags[1:])]


def _yaml_default(row: Setting) -> str:
    if row.kind.many:
        return " []"
    if row.default is None or row.name == "state_dir":
        return f"  # {row.default_text()}"
    return f" {row.kind.format(row.default)}"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
