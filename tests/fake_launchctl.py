"""A launchctl that only remembers: what was asked of it, and which jobs are loaded and run."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

SCRIPT = """\
#!{python}
import json, os, pathlib, sys
state = pathlib.Path({state!r})
known = {{"calls": [], "loaded": False, "running": False, "refuse": {{}}}}
if state.exists():
    known = json.loads(state.read_text())
words = sys.argv[1:]
known["calls"].append(words)
verb, code, said = words[0], 0, ""
if verb in known["refuse"]:
    code, said = 5, known["refuse"][verb]
elif verb == "print":
    if not known["loaded"]:
        code, said = 113, "Could not find service"
    else:
        how = "running" if known["running"] else "not running"
        said = "{{\\n\\tactive count = 1\\n\\tstate = " + how
        said += "\\n\\truns = 2\\n\\tlast exit code = 0\\n"
        said += "\\tpid = 4242\\n" if known["running"] else ""
elif verb == "bootstrap":
    if known["loaded"]:
        code, said = 5, "Bootstrap failed: 5: Input/output error"
    else:
        known.update(loaded=True, running=True)
elif verb == "bootout":
    known.update(loaded=False, running=False)
elif verb == "kickstart":
    known["running"] = True
elif verb == "kill":
    known["running"] = False
state.write_text(json.dumps(known))
print(said, file=sys.stderr if code else sys.stdout)
sys.exit(code)
"""


def put_on_path(folder: Path) -> Path:
    """Write the command into ``folder``; returns the file that it keeps its state in."""
    folder.mkdir(exist_ok=True)
    state = folder / "launchctl.json"
    program = folder / "launchctl"
    program.write_text(SCRIPT.format(python=sys.executable, state=os.fspath(state)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return state
