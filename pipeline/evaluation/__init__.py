"""Evaluation of captioners and of caption files."""
