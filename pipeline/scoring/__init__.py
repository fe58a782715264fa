"""The metrics one by one, each equal to pycocoevalcap 1.2 to 1e-6, and what is told of them."""
