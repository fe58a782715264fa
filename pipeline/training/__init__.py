"""Training in epochs, validated and exactly resumable."""
