"""Faithfulness of attention, per layer and run."""
