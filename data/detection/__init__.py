"""Labelled boxes and class names for training detectors."""
