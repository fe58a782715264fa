"""A2 Transformer: attention-aligned image captioning (AAAI 2022).

This package is the public door; it imports nothing heavy. `a2cap.data`, `a2cap.extract`,
`a2cap.model` and `a2cap.pipeline` contain the implementation.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
