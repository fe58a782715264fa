"""Faster R-CNN with the conventions of bottom-up attention."""
