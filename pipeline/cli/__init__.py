"""The `a2` command."""
