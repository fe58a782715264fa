"""Detector weights: public layouts, ImageNet and calibrated-random."""
