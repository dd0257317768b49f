"""Proof that decoding is lossless: exact laws, equal caches, and wrong decoders that must be caught."""
