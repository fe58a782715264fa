"""Layers that captioners share."""
