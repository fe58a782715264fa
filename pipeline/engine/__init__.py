"""Cached, locked and resumable stages: key -> partial directory -> manifest -> rename."""
