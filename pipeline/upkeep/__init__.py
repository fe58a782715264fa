"""Checks: preflight before a run, integrity of results, and cleaning of artifacts."""
