"""A launchctl that remembers what was asked of it, and is as late as the real one.

``bootout`` and ``kill`` return before the job has ended: it is seen for ``lag`` looks more, and a
``bootstrap`` meanwhile fails with code 5, as launchd's does, and so do the next ``busy`` ones.
Looks take the place of time.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

SCRIPT = """\
#!{python}
import json, os, pathlib, sys
state = pathlib.Path({state!r})
known = {{"calls": [], "loaded": False, "running": False, "refuse": {{}}, "lag": 2, "looks": 0,
         "then": None, "busy": 0}}
if state.exists():
    known.update(json.loads(state.read_text()))
words = sys.argv[1:]
known["calls"].append(words)
verb, code, said = words[0], 0, ""
# What was asked for before happens only now, some looks later.
if known["then"] is not None:
    known["looks"] -= 1
    if known["looks"] <= 0:
        known.update(known["then"], then=None)
ending = known["then"] is not None
if verb in known["refuse"]:
    code, said = 5, known["refuse"][verb]
    if said.startswith("Bootstrap failed: "):
        code = int(said.split(":")[1])
elif verb == "print":
    if not known["loaded"]:
        code, said = 113, "Could not find service"
    else:
        how = "running" if known["running"] else "not running"
        said = "{{\\n\\tactive count = 1\\n\\tstate = " + how
        said += "\\n\\truns = 2\\n\\tlast exit code = 0\\n"
        said += "\\tpid = 4242\\n" if known["running"] else ""
elif verb == "bootstrap":
    if known["busy"]:
        known["busy"] -= 1
        code, said = 5, "Bootstrap failed: 5: Input/output error"
    elif known["loaded"]:
        code, said = 5, "Bootstrap failed: 5: Input/output error"
    else:
        known.update(loaded=True, running=True)
elif verb == "bootout":
    if ending:
        code, said = 36, "Boot-out failed: 36: Operation now in progress"
    else:
        known.update(looks=known["lag"], then={{"loaded": False, "running": False}})
elif verb == "kickstart":
    if "-k" in words:
        known["killed"] = True
    elif known["running"]:
        code, said = 37, "Could not kickstart service: 37: Operation already in progress"
    known["running"] = True
elif verb == "kill":
    known.update(looks=known["lag"], then={{"running": False}})
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
