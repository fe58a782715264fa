"""The Transformer captioner (Cornia et al. 2020) with optional alignment."""
