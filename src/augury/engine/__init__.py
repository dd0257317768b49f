"""Turns the loop: requests in, answers out. Begin with ``loop.py``."""
