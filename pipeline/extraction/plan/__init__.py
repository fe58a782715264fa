"""Shard plans: extraction of any number of images by any number of workers on a shared disk."""
