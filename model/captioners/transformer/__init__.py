"""The A2 Transformer captioner."""
