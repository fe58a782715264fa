"""Captions, attention and grounding by trained captioners."""
