"""Structured output: which texts an answer may be, as ``Sampling(grammar=...)`` takes it."""
