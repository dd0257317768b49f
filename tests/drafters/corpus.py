"""Small corpora and a tokenizer that a test can follow: every character is a token."""

from __future__ import annotations

import numpy as np

from augury.datastore.change import build


class Letters:
    """Ids are code points modulo the size of the vocabulary."""

    def __init__(self, vocab_size=200, name="letters"):
        self.vocab_size = vocab_size
        self.hash = name
        self.special = {}

    def encode(self, text, special=True, start=False):
        return np.array([ord(c) % self.vocab_size for c in text], np.int32)

    def token_bytes(self, id):
        return bytes([id])

    def incremental(self, context=()):
        return self

    def push(self, ids):
        return "".join(map(chr, ids))

    def flush(self):
        return ""


def written(directory, texts):
    """Files of texts: their paths, which sort as the texts stand."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, text in enumerate(texts):
        paths.append(directory / f"{number:04}.txt")
        paths[-1].write_text(text)
    return paths


def built(place, texts, tokenizer=None, **more):
    """An index of texts, one document each; more than one segment is made of it if ``_RUN`` is small."""
    return build(place, written(place.parent / f"{place.name}-files", texts), tokenizer or Letters(), "letters", **more)
