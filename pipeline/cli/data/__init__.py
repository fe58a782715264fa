"""Commands that convert, draw and download data and weights."""
