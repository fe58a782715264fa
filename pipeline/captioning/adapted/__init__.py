"""Captioners of `transformers` in a2's commands: prompts, batches, and where their tokens are."""
