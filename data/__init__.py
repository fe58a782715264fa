"""What lies on disk and how it becomes a batch: annotations, vocabulary, captions, features."""
