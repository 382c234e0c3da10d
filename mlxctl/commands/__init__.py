"""The commands of mlxctl, one module a group."""
