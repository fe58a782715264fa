"""Beam search, sampling and ensembles."""
