"""A2 Transformer: attention-aligned image captioning (AAAI 2022)."""

__version__ = "0.1.0"
