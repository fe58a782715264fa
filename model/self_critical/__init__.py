"""Rewards and rollouts of self-critical training."""
