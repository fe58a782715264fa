"""Vocabulary, tokenized captions and document frequencies."""
