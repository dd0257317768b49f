"""The report of a run as one page."""
