"""Reward and rollouts of self-critical training."""
