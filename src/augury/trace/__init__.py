"""Reads records, and shows them."""
