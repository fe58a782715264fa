"""Commands that judge captions and captioners."""
