"""Extraction of region features from folders of images."""
