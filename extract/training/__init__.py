"""Losses and targets that train the detector."""
