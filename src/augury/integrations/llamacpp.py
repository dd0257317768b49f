"""Our drafters inside llama.cpp, as a draft model of llama-cpp-python.

    llama = Llama("model.gguf", draft_model=AuguryDraft("suffix"))

llama-cpp-python samples a token behind every guess and goes on as long as the guess is that token, so the law of the
text is llama.cpp's own. Its rows are not the same in forwards of other sizes: at near ties a greedy text may part from
that of plain decoding, with any draft model.

What is told to a draft model is the text so far, no more. A text is a new one when it does not go on from the last one
by what a step can bring; of the last step of a text nothing is told. Guesses are made as long as they pay, by prices
that are measured: in llama.cpp on CPUs a row more is dear.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from augury.errors import InputError, shown
from augury.integrations.alongside import Alongside, Came, Measured, Prices, Text
from augury.integrations.specs import listed
from augury.record import RequestRecord
from augury.tree import IntArray

_VOCABULARY = _CONTEXT = 1 << 20
"""A draft model is made before its target is loaded, and need not know more than that all fits."""

_ROW = 0.25
"""Plain steps that a row more is thought to cost before any was measured."""


class AuguryDraft:
    """Guesses for one ``Llama``.

    Args:
        drafters: a comma list of specs, or a list of them, see ``augury drafters``.
        prices: of llama.cpp's forwards; they are measured when None, from the third step on.

    Raises:
        InputError: a drafter that cannot be had; prices that are none.
    """

    def __init__(self, drafters: str | Sequence[str] = "suffix", *, prices: Prices | None = None) -> None:
        self._beside = Alongside(
            listed(drafters),
            vocab_size=_VOCABULARY,
            context=_CONTEXT,
            prices=Measured(row=_ROW) if prices is None else prices,
        )
        self.names = self._beside.names
        """Of the drafters."""
        self._text: Text | None = None
        self._most = 0  # tokens that the step now under way can bring
        self._prediction: IntArray | None = None
        if (theirs := sys.modules.get("llama_cpp.llama_speculative")) is not None:
            theirs.LlamaDraftModel.register(AuguryDraft)

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **_: Any) -> npt.NDArray[np.intc]:
        """Guesses i32[k] for what follows the text i32[n], n >= 1; maybe none."""
        text, came = self._text, self._came(input_ids)
        goes_on = text is not None and came is not None
        if text is None or came is None:
            text, came = self._begin(input_ids)
        (chain,) = self._beside.step([Came(text, came)], timed=goes_on)
        self._most = len(chain) + 1
        return np.array(chain, np.intc)

    def expect(self, prediction: Sequence[int]) -> None:
        """Say what is expected to come in the next text, for the drafter ``prediction``. What is given next is that
        text, even where it goes on from the last one.

        Args:
            prediction: ids, as ``Llama.tokenize(text, add_bos=False)`` gives them.

        Raises:
            InputError: what is no list of ids, or no drafter that would read it.
        """
        self._beside.check_reads_prediction()
        ids = np.asarray(prediction)
        if ids.ndim != 1 or (len(ids) and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= _VOCABULARY)):
            raise InputError(
                f"prediction is {shown(prediction)}; it must be a list of token ids, as Llama.tokenize gives"
            )
        self._prediction = ids.astype(np.int32)

    @property
    def record(self) -> RequestRecord | None:
        """Of the latest text, all but its last step; None before the first. ``verify_ms`` is all but the drafting."""
        return None if self._text is None else self._text.record

    def _begin(self, ids: npt.NDArray[np.intc]) -> tuple[Text, list[int]]:
        """A new text, and the first token of its answer: it is there already, the prompt's own forward brought it."""
        if self._text is not None:
            self._beside.close(self._text)
        prompt = max(len(ids) - 1, 1)
        # A copy: the ids are a view of a buffer that llama-cpp-python writes to.
        self._text = self._beside.open(np.array(ids[:prompt], np.int32), prediction=self._prediction)
        self._prediction = None
        self._beside.step([Came(self._text, ())], 0)
        return self._text, ids[prompt:].tolist()

    def _came(self, ids: npt.NDArray[np.intc]) -> list[int] | None:
        """What the last step added to the text, or None where the ids are another text's."""
        if self._text is None or self._prediction is not None:
            return None
        before = self._text.tokens
        known = len(before)
        if not known < len(ids) <= known + self._most or not np.array_equal(ids[:known], before):
            return None
        return list(ids[known:].tolist())
