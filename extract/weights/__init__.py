"""Detector weights: public layouts and ImageNet."""
