"""mlxctl: reads and changes the caches of a running mlxceld."""
