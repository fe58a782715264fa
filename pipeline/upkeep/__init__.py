"""Upkeep: what the machine has, integrity of results, and cleaning of artifacts."""
