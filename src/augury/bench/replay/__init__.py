"""Recorded answers, once more through the loop, with no model."""
