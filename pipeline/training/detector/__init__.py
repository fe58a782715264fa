"""Training of detectors on labelled images, and their evaluation."""
