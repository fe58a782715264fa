"""Checks before, of and after runs."""
