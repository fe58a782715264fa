"""Faithfulness of attention per layer, compared between runs."""
