"""Training of captioners: cross-entropy with the mask loss, then self-critical training."""
