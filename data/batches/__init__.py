"""Batches of features and captions for training and decoding."""
