"""Attention over regions; each kind can be aligned."""
