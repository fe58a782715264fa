"""Training and evaluation of detectors."""
