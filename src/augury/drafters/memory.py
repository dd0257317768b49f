"""What followed similar contexts in answers that the target gave the same tenant before.

When a request closes, finished or cancelled, its answer is remembered behind the last ``TAIL`` tokens of the prompt,
by which its beginning is found again. Later requests of the tenant ask where the longest ending of their text occurs
in what is remembered; these places vote on what comes next (``passages.py``). An answer that was sampled under a ratio
rule is not remembered: asked again with the same seed, the noise that drew it would judge it, and what is kept would
no longer follow the target's law.

A tenant is a ``cache_salt``; requests without one are all of one local user. Nothing that this drafter learnt of one
tenant's answers is used in a request of another, neither text nor calibration: who knows how many tokens every step
brings would learn what others were told (arXiv:2411.01076). As it ``remembers``, what the engine learns of how right it
is and of what asking it brings ends with the request. Slots are another thing, and not of tenants
(``docs/guarantees.md``).

With a ``path`` answers outlive the process (``datastore/answers.py``); where it cannot be written they do not, which is
logged once and changes no answer; while another process has locked it one answer does not. The index is made again of
all that was kept when the tenant first asks, and the engine waits for it. When it asks again, what other processes have
added since is read, and nothing else; what they have forgotten is forgotten here.

State: of each of at most ``tenants`` tenants ``mb`` megabytes at most; of more, who asked longest ago is forgotten.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from augury.datastore.answers import Answers, Kept, News, Reach
from augury.datastore.records import Unfit
from augury.drafters.drafter import Drafter, Observation, View, tenant_of
from augury.drafters.passages import MOST_VOTERS, Reader, Tokenizer
from augury.drafters.past import DEPTH
from augury.drafters.remembered import RECORD_TOKENS, TOKEN_BYTES, Remembered
from augury.drafters.survival import Line, Survival
from augury.errors import InputError
from augury.tree import DraftTree, IntArray

TAIL = 16
"""Tokens of the prompt that are kept in front of an answer."""

MB, TENANTS = 16, 32
"""What a memory may take where nothing else is said: megabytes for each tenant, and tenants."""

_KINDS = (Line(1.0, -1.4), Line(0.55, -1.65), Line(0.9, -1.9), Line(1.4, -1.8), Line(0.5, -1.05), Line(0.35, -2.0))
"""By rank: guesses of places just asked for, then of those that vote on. Fitted to answers of a small chat model to
prompts that were asked once (which weighed most: so a memory begins), once more with a sentence added, and again. How
near they come on other prompts is a test: ``test_stated_survival_is_about_what_comes_in_answers_of_a_model``."""

_LOG = logging.getLogger(__name__)


def file_bytes(mb: int) -> int:
    """Of a file on disk at most, of which a tenant has two, where it may take ``mb`` megabytes of memory."""
    return 4 * _generation(mb)


def _generation(mb: int) -> int:
    """Tokens of a generation at most."""
    return (mb << 20) // TOKEN_BYTES // 2


@dataclass
class _Tenant:
    name: str
    remembered: Remembered
    survival: Survival
    reach: Reach | None = None  # how far what is kept of it was read
    kept: bool = True  # whether they are fit to be written to
    unread: bool = False  # they were locked; they are read when the tenant asks next
    forgotten: bool = False  # while a request was open


@dataclass
class _Request:
    tenant: _Tenant
    reader: Reader


class Memory(Drafter):
    """Votes of places in the tenant's earlier answers.

    Args:
        path: a directory of its own, where answers are kept; they end with the process when empty.
        mb: megabytes of memory for each tenant at most; on disk a fifth of it.
        tenants: remembered at most, in memory and on disk.
        voters: places heard at most.
        shortest: tokens a place must share with the present context.
        tokenizer: the target's; answers of another one are kept apart.

    Raises:
        InputError: an argument out of its range, a path without a tokenizer, or one that is no directory of answers, or
            that others can change.
    """

    remembers = True

    def __init__(
        self,
        *,
        path: str = "",
        mb: int = MB,
        tenants: int = TENANTS,
        voters: int = 8,
        shortest: int = 2,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        limits = (("mb", mb, 4096), ("tenants", tenants, 65536), ("voters", voters, MOST_VOTERS))
        for name, value, most in (*limits, ("shortest", shortest, DEPTH)):
            if not 1 <= value <= most:
                raise InputError(f"drafter memory: {name} is {value}; it must be from 1 to {most}")
        self._most = _generation(mb)
        self._tenants_most, self._voters, self._shortest = tenants, voters, shortest
        self._tenants: dict[str, _Tenant] = {}  # in order of last use
        self._requests: dict[int, _Request] = {}
        self._answers: Answers | None = None
        self._writable = True
        if path:
            if tokenizer is None:
                raise InputError("drafter memory: answers are kept by tokenizer, and here is none; leave out the path")
            self._place = Path(os.path.realpath(os.path.expanduser(path)))  # a link may be changed behind the check
            try:
                self._answers = Answers(self._place, tokenizer.hash, file_bytes(mb), tenants, self._note)
            except OSError as error:
                self._unwritable(error)

    def open(self, view: View) -> None:
        """Recall the tenant, and look the prompt's end up."""
        owner = self._recalled(view.tenant)
        ask = partial(owner.remembered.found, voters=self._voters, shortest=self._shortest)
        self._requests[view.id] = _Request(owner, Reader(ask, owner.survival.open(view.temperature), view.tokens))

    def propose(self, view: View, limit: int) -> DraftTree:
        """The ``limit`` likeliest nodes."""
        reader = self._requests[view.id].reader
        reader.follow(view.tokens)
        return reader.propose(limit, view.room, view.floor, view.chain)

    def observe(self, view: View, seen: Observation) -> None:
        """Score what would have been guessed, and follow what came."""
        self._requests[view.id].reader.follow(view.tokens)

    def close(self, view: View) -> None:
        """Remember the answer."""
        request = self._requests.pop(view.id, None)
        # An answer must not depend on noise that may judge it when it is guessed.
        drawn = view.rule != "coupled" and view.temperature > 0.0
        if request is None or view.length == view.prompt_length or drawn:
            return
        record = np.array(view.tokens[max(view.prompt_length - TAIL, 0) :][RECORD_TOKENS - self._most :])
        owner = request.tenant
        if owner.forgotten or record in owner.remembered:
            return
        self._keep(owner, record)
        if not owner.forgotten:
            owner.remembered.add(record)

    def forget(self, cache_salt: str = "") -> None:
        """Forget a tenant, on disk too, and the answers of its requests that are open.

        Raises:
            InputError: ``cache_salt`` is none.
            OSError: its files cannot be deleted; they may be left.
        """
        name = tenant_of(cache_salt)
        self._drop(name)
        if self._answers is not None:
            self._answers.forget(name)

    def _recalled(self, name: str) -> _Tenant:
        """A tenant, as the one who was used last."""
        if known := self._tenants.get(name):
            self._catch_up(known)
        owner = self._tenants.pop(name, None)
        if owner is None or owner.unread:
            read = self._read(name)
            owner = owner if owner and read.unread else read
        self._tenants[name] = owner
        if len(self._tenants) > self._tenants_most:
            del self._tenants[next(iter(self._tenants))]
        return owner

    def _catch_up(self, owner: _Tenant) -> None:
        """Learn what others did with a tenant's files since they were read: they added to them, or forgot it."""
        if self._answers is None or owner.reach is None:
            return
        kept: Kept | None = None
        try:
            news = self._answers.news(owner.name, owner.reach)
            if news is News.NONE:
                return
            if news is News.MORE:
                kept = self._answers.read(owner.name, owner.reach)
        except (OSError, Unfit):  # it is looked at again when the tenant asks next
            return
        if kept is None:
            self._drop(owner.name)
            return
        for text in kept.notes:
            self._note(text)
        if kept.whole:
            owner.remembered.replace(kept.old, kept.young)
        else:
            owner.remembered.extend([*kept.old, *kept.young])
        owner.reach = kept.reach

    def _read(self, name: str) -> _Tenant:
        """A tenant as it is on disk."""
        fresh = _Tenant(name, Remembered(self._most), Survival(_KINDS))
        if self._answers is None:
            return fresh
        try:
            kept = self._answers.read(name)
        except BlockingIOError as error:
            self._busy(error)
            fresh.kept, fresh.unread = False, True
            return fresh
        except OSError as error:
            self._unwritable(error)
            return fresh
        except Unfit as error:
            self._unfit(fresh, error)
            return fresh
        assert kept is not None, "nothing was read of it that could be forgotten since"
        for text in kept.notes:
            self._note(text)
        return _Tenant(name, Remembered(self._most, kept.old, kept.young), fresh.survival, kept.reach)

    def _keep(self, owner: _Tenant, record: IntArray) -> None:
        """Write an answer to disk, if that can be done."""
        if self._answers is None or not (self._writable and owner.kept):
            return
        try:
            reach = self._answers.add(owner.name, owner.reach, record)
        except BlockingIOError as error:
            self._busy(error)
            return
        except OSError as error:
            self._unwritable(error)
            return
        except Unfit as error:
            self._unfit(owner, error)
            return
        if reach is None:
            self._drop(owner.name)
            owner.forgotten = True  # it may have been no longer among the tenants, nor its request among the open ones
        owner.reach = reach

    def _drop(self, name: str) -> None:
        """Forget a tenant in memory; its requests that are open lose what they read from."""
        for owner in [self._tenants.pop(name, None), *(request.tenant for request in self._requests.values())]:
            if owner is not None and owner.name == name:
                owner.forgotten = True
                owner.remembered.clear()

    def _busy(self, error: OSError) -> None:
        """Say that one answer is not kept; the next one may be."""
        self._note(f"{error.strerror}; this answer is not kept")

    def _unfit(self, owner: _Tenant, error: Unfit) -> None:
        """Say that nothing is kept of one tenant any more."""
        self._note(f"{error}; what is remembered of this tenant ends with the process")
        owner.kept = False

    def _unwritable(self, error: OSError) -> None:
        """Say once that nothing is kept any more."""
        if self._writable:
            self._note(f"{error.strerror or error}; from now on what is remembered ends with the process")
        self._writable = False

    def _note(self, text: str) -> None:
        _LOG.warning("augury: memory %s: %s", self._place, text)
