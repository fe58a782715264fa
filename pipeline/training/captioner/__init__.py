"""Cross-entropy and self-critical training of captioners."""
