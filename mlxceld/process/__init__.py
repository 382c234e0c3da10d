"""The daemon as a process: lock file, detaching, service notification."""
