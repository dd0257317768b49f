"""Measures a running server from outside: its load, what its streams give away, and whether it stays well."""
