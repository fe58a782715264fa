"""Captions and attention from saved captioners."""
