"""Cached, locked, resumable stages: key -> partial directory -> manifest -> rename."""
