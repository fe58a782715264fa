"""Captioners that read attributes of the image: words that it may show."""
