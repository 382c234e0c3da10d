"""The daemon as a process: lock file, listening sockets, detaching, stopping, notification."""
