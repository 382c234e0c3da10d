"""What ``mlxctl doctor`` looks at, by what it looks into."""
