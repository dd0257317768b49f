"""How a conversation begins: the target writes the user's turns too (Magpie, Xu et al. 2024, arXiv:2406.08464).

A model that was trained on conversations goes on from the opening of a user's turn as a user would. What opens and
closes that turn is read off the target's own chat template, whatever it is. So that not all turns are of the few
subjects that come to a model first, most begin with something given: a few words of ours, a passage of machine text,
an earlier answer of its own, or a prompt of the caller's.

Everything is a function of (seed, shard, index), and of the earlier shards where an answer of theirs is read.
"""

from __future__ import annotations

import functools
import random
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from augury.errors import InputError, ModelError
from augury.models.load import Loaded
from augury.models.template import ChatTemplate
from augury.models.tokenizer import Tokenizer
from augury.sampling import Sampling
from augury.tree import IntArray, common

LONGEST = 1024
"""Tokens of a conversation that are learnt from at most; what is given of one is at most half of it."""

TURN_TOKENS = 96
"""Tokens that the target may invent of a user's turn."""

SHORTEST = 4
"""Tokens of a user's turn; what is shorter asks for nothing."""

PASSAGE = (60, 250)
"""Tokens of a passage of machine text."""

DOCUMENTS = 3
"""Earlier answers that are read as one document, at most."""

LEADS = (
    "Explain why", "Explain to a ten-year-old how", "What is", "What happens when", "How do I", "How does", "Why do",
    "Who was", "When did", "Which is better:", "Is it true that", "Can you help me", "I am trying to", "Tell me about",
    "List the steps to", "List some examples of", "Name three", "Make a checklist for", "Give me ideas for",
    "Compare", "What is the difference between", "Describe", "Define", "Write a short story about", "Write a poem on",
    "Write an email to", "Write a polite reply to this message:", "Write a speech for", "Write a review of",
    "Write a dialogue between", "Draft a notice that", "Rewrite this sentence so that it is shorter:",
    "Correct the mistakes in this paragraph:", "Translate into French:", "Translate into Spanish:",
    "How do you say in German:", "Put this into plain English:", "In a few lines, what does this say?",
    "Write a Python function that", "Write a JavaScript function that", "Write an SQL query that",
    "Write a shell command that", "Write a C program that", "Write a regular expression for", "Why does my code fail?",
    "Make a table of", "Make a table with the columns", "Give a JSON object that describes", "Write the YAML for",
    "Convert to CSV:", "Work out", "A shop sells", "If a train", "Solve for x:", "Show that", "How many", "Estimate",
    "Plan a week of", "What should I cook with", "Give me advice on", "Imagine you are", "What would happen if",
    "Argue for and against", "Sort these by size:", "Continue this text:", "Choose a title for this text:",
    "Erkläre mir, wie", "Schreibe einen kurzen Text über", "Warum ist", "Expliquez-moi pourquoi",
    "Écris une courte lettre à", "Quelle est la différence entre", "Explícame cómo", "Escribe una lista de",
    "¿Por qué", "Spiegami che cosa", "Scrivi una breve storia su", "Explique como", "Leg uit waarom", "Расскажи о",
    "请解释", "写一封信给", "日本語で説明してください:",
)  # fmt: skip
"""Beginnings of user's turns that the target goes on from: of many kinds, on no subject."""

CODE_LEADS = (
    "Explain this code:", "What does this do?", "Find the bug in this code:", "Review this code:",
    "Write comments for this code:", "Rewrite this in a simpler way:", "Write a test for this:",
    "Translate this to JavaScript:", "Continue this code:", "Repeat this code and rename its variables:",
)  # fmt: skip
CODE_TAILS = ("Question:", "Change it so that", "Add a function that", "Why", "Can you")
DOCUMENT_LEADS = (
    "Give me the main points of this text:", "What does this say, in two sentences?", "Shorten this text:",
    "Put this into simpler words:", "Translate this text into French:", "Translate this text into German:",
    "Translate this text into Spanish:", "Correct this text where it is wrong:", "Continue this text:",
    "Make a list of the facts in this text:", "Write a title and a summary for this text:",
    "Turn this text into a table:", "Repeat this text, but more politely:", "Ask three questions about this text:",
)  # fmt: skip
DOCUMENT_TAILS = (
    "Question:",
    "According to this text, what",
    "According to this text, why",
    "Who",
    "Rewrite it so that",
)
"""Leads stand before what is given, and it is a whole turn; behind tails the target goes on."""

LEAD, CODE, DOCUMENT = 0.40, 0.15, 0.15
"""Shares of conversations that begin so; the others begin with nothing."""


@dataclass(frozen=True)
class Frame:
    """What stands around a user's turn.

    Attributes:
        before: i32, from the beginning of a conversation to the user's first word; empty for a target that has neither
            a chat template nor a token to begin with.
        after: i32, from the user's last word to the answer's first; empty without a chat template.
    """

    before: IntArray
    after: IntArray


@dataclass(frozen=True)
class Opening:
    """A conversation up to what the target is to invent of the user's turn.

    Attributes:
        prompt: i32[m].
        given: how many tokens of the user's turn are among them.
        invents: whether the target goes on with the user's turn; if not, it stands there whole.
        after: i32, what stands between the turn and the answer.
        turn: how the user's turn is drawn.
        answer: how the answer is drawn.
    """

    prompt: IntArray
    given: int
    invents: bool
    after: IntArray
    turn: Sampling
    answer: Sampling

    def asked(self, invented: Sequence[int], controls: Callable[[int], bool]) -> IntArray | None:
        """The prompt for the answer, i32, or None where no turn came about.

        Args:
            invented: what the target wrote. It ends where the first control token stands.
            controls: whether an id is a control token.
        """
        size = next((i for i, id in enumerate(invented) if controls(id)), len(invented))
        if (self.invents and not size) or self.given + size < SHORTEST:
            return None
        return np.concatenate([self.prompt, np.asarray(invented[:size], np.int32), self.after])


class Inventor:
    """Begins the conversations of a target.

    Args:
        loaded: the target with its tokenizer.
        seed: another seed gives other conversations.
        documents: shard -> the answers in it, ids; asked for earlier shards only.
        prompts: what users asked, to begin with; used in an order of the seed's, each once before one is used twice.
        share: of the conversations that begin with one of the prompts, 0 to 1.

    Raises:
        ModelError: the chat template does not show what the user says.
    """

    def __init__(
        self,
        loaded: Loaded,
        seed: int,
        documents: Callable[[int], Sequence[IntArray]],
        prompts: Sequence[str] = (),
        share: float = 1.0,
    ) -> None:
        self._loaded = loaded
        self._seed = seed
        self._documents = documents
        self._prompts = list(prompts)
        random.Random(f"{seed} prompts").shuffle(self._prompts)
        self._share = share if self._prompts else 0.0
        self._longest = min(loaded.target.info.context, LONGEST) // 2
        self.frame = framed(loaded)

    def opening(self, shard: int, index: int, of: int) -> Opening:
        """The beginning of conversation ``index`` of the ``of`` conversations of a shard."""
        chance = random.Random(f"{self._seed} {shard} {index}")
        turn = Sampling(temperature=1.0, top_p=0.95, top_k=50, seed=chance.getrandbits(63))
        answer = _answer(chance.random(), chance.getrandbits(63))
        prompted, kind = chance.random(), chance.random()
        if prompted < self._share:
            prompt = self._asked(self._prompts[(shard * of + index) % len(self._prompts)])
            return Opening(prompt, len(prompt), False, np.empty(0, np.int32), turn, answer)
        given, invents = self._given(chance, kind, shard)
        return Opening(
            np.concatenate([self.frame.before, given]), len(given), invents, self.frame.after, turn, answer
        )  # fmt: skip

    def _given(self, chance: random.Random, kind: float, shard: int) -> tuple[IntArray, bool]:
        """What of the user's turn is given, and whether the target goes on from there."""
        if kind < CODE and (passage := self._passage(chance)) is not None:
            return self._around(chance, passage, CODE_LEADS, CODE_TAILS)
        if CODE <= kind < CODE + DOCUMENT and shard > 0:
            return self._around(chance, self._document(chance, shard), DOCUMENT_LEADS, DOCUMENT_TAILS)
        if kind < CODE + DOCUMENT + LEAD or not len(self.frame.before):
            return self._ids(chance.choice(LEADS)), True
        return np.empty(0, np.int32), True

    def _around(
        self, chance: random.Random, text: IntArray, leads: Sequence[str], tails: Sequence[str]
    ) -> tuple[IntArray, bool]:
        """A text with a lead before it, as a whole turn, or with a tail behind it that the target goes on from."""
        tail = chance.random() < 0.4
        words = chance.choice(tails if tail else leads)
        parts = [text, self._ids(f"\n\n{words}")] if tail else [self._ids(f"{words}\n\n"), text]
        return np.concatenate(parts), tail

    def _passage(self, chance: random.Random) -> IntArray | None:
        """A passage of some file of Python's library, from the beginning of a line; None where there are no files."""
        files = _library()
        if not files:
            return None
        lines = files[chance.randrange(len(files))].read_text("utf-8", "replace").splitlines(keepends=True)
        size = min(chance.randint(*PASSAGE), self._longest)
        first = chance.randrange(max(len(lines) - size // 5, 1))  # a line has some ten tokens, or none
        return self._ids("".join(lines[first : first + size]))[:size]

    def _document(self, chance: random.Random, shard: int) -> IntArray:
        """Some earlier answers, as one text."""
        gap, parts = self._ids("\n\n"), []
        for _ in range(chance.randint(1, DOCUMENTS)):
            answers = self._documents(chance.randrange(shard))
            answer = answers[chance.randrange(len(answers))]
            parts += [gap, answer[[not self.is_control(id) for id in answer.tolist()]]]
        return np.concatenate(parts[1:])[: self._longest]

    def _asked(self, prompt: str) -> IntArray:
        """Ids of a caller's prompt, as far as to the answer."""
        if self._loaded.template is None:
            return self._loaded.tokenizer.encode(prompt, special=False, start=True)
        return _rendered(self._loaded.template, self._loaded.tokenizer, prompt)

    def _ids(self, text: str) -> IntArray:
        return self._loaded.tokenizer.encode(text, special=False)

    def is_control(self, id: int) -> bool:
        """Whether an id is a control token, or ends an answer."""
        return id in self._loaded.tokenizer.special or id in self._loaded.eos_ids


def framed(loaded: Loaded) -> Frame:
    """What stands around a user's turn; a target without a chat template begins with its begin token.

    Raises:
        ModelError: the chat template does not show what the user says.
    """
    nothing = np.empty(0, np.int32)
    if loaded.template is None:
        start = loaded.tokenizer.encode("", start=True)
        return Frame(start if len(start) else np.array(loaded.eos_ids[:1], np.int32), nothing)
    # Words that begin and end unlike each other, so that all they have in common is the template's.
    one, other = (_rendered(loaded.template, loaded.tokenizer, word) for word in ("apple", "River"))
    begin = common(one, other)
    end = common(one[begin:][::-1], other[begin:][::-1])
    if begin + end >= min(len(one), len(other)):
        name = loaded.target.info.name
        raise ModelError(
            f"the chat template of {name} does not show what the user says; load the target with another template"
        )
    return Frame(one[:begin], one[len(one) - end :])


def _rendered(template: ChatTemplate, tokenizer: Tokenizer, text: str) -> IntArray:
    return template.encode(tokenizer, [{"role": "user", "content": text}])


def _answer(kind: float, seed: int) -> Sampling:
    """How an answer is drawn: most are what the target is surest of, the others show it what else it may say."""
    if kind < 0.6:
        return Sampling()
    if kind < 0.8:
        return Sampling(temperature=0.7, seed=seed)
    return Sampling(temperature=1.0, top_p=0.95, seed=seed)


@functools.cache
def _library() -> Sequence[Path]:
    """Files of Python's own library that are long enough for a passage, by name."""
    home = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "dist-packages", "__pycache__"}
    files = [path for path in home.rglob("*.py") if left_out.isdisjoint(path.relative_to(home).parts)]
    return sorted(path for path in files if path.stat().st_size > 4096)


def check_prompts(prompts: Sequence[str], share: float) -> None:
    """Raises ``InputError`` for prompts that are no texts, and a share that is none."""
    if isinstance(prompts, str) or not all(isinstance(prompt, str) and prompt.strip() for prompt in prompts):
        raise InputError("prompts must be texts that are not empty; give a list of them")
    if not 0.0 <= share <= 1.0:
        near = min(max(share, 0.0), 1.0)
        raise InputError(f"share is {share}; it must lie in 0..1, and the nearest is {near:g}")
