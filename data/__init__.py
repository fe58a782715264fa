"""Data on disk and how it becomes batches: annotations, vocabulary, captions, features."""
