"""Training of an image encoder on captioned images."""
