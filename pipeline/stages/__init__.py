"""The cached stages, from extract to evaluate."""
