"""Try both HTTP APIs of a running daemon with what their OpenAPI documents allow, and what not.

Start a daemon on a small model with a short context, with API keys and the admin API over TCP, and
give both addresses with files of a key and a token:

    python scripts/fuzz_api.py --public http://127.0.0.1:8484 --key-file key \\
        --admin http://127.0.0.1:8485 --token-file token

Needs schemathesis (of the ``dev`` extra). Two admin routes are left out: one drains the daemon,
which would take no more requests afterwards, and one is a stream without an end. Ends with the
worse of both exit codes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

_CONFIG = """\
[checks]
# A document cannot say all that a field depends on: such a body is refused with 400.
positive_data_acceptance.expected-statuses = ["2xx", 400, 401, 403, 404, 409, 413, 429]
"""

_LEFT_OUT = ("/admin/v1/drain", "/admin/v1/trace/stream")


def main() -> int:
    """Run schemathesis against both documents; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--public", required=True, help="URL of the public API")
    parser.add_argument("--key-file", type=Path, required=True, help="file with one API key alone")
    parser.add_argument("--admin", required=True, help="URL of the admin API")
    parser.add_argument("--token-file", type=Path, required=True, help="file with one token alone")
    parser.add_argument("--examples", type=int, default=60, help="cases an operation and phase")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    codes = []
    for url, secret in ((given.public, given.key_file), (given.admin, given.token_file)):
        codes.append(_fuzz(url, secret.read_text().strip(), given.examples, given.seed))
    return max(codes)


def _fuzz(url: str, secret: str, examples: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "schemathesis.toml"
        config.write_text(_CONFIG)
        words = [str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(config)]
        words += ["run", f"{url.rstrip('/')}/openapi.json"]
        words += ["-H", f"Authorization: Bearer {secret}", "-n", str(examples)]
        words += ["--seed", str(seed), "--continue-on-failure", "--request-timeout", "60"]
        for path in _LEFT_OUT:
            words += ["--exclude-path", path]
        return subprocess.run(words, check=False).returncode  # noqa: S603 - our own words


if __name__ == "__main__":
    sys.exit(main())
