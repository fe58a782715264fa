"""Files on disk: JSON, YAML, tensors, checksums and atomic writes."""
