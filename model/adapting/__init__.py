"""Cross-attention of captioners of `transformers`: recorded word by word, and aligned."""
