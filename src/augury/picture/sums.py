"""The arithmetic of a step in sentences: what was offered and expected, why each guess was kept or not, what it cost.

Every figure is the event's own, or reckoned from it: with the seed also the chance that fixed a draw of the coupled
rule, which depends on nothing but seed, position and token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from augury.noise import Noise, Stream
from augury.picture.words import OWN, Guess, guesses, milliseconds, word
from augury.record import PHASES
from augury.trace.events import accepted

_LONG = 8  # survivals that are added up term by term


def sums(step: Mapping[str, Any], begin: Mapping[str, Any]) -> list[str]:
    """Sentences.

    Args:
        step: an event of the kind ``step``.
        begin: the request's event of that kind.
    """
    found = guesses(step, begin["drafters"])
    said = [*_offers(step), *_expected(found)]
    if found:
        whole = begin["rule"] == "block" and begin["sampling"]["temperature"] != 0.0
        said += _block(step, found) if whole else _walked(step, begin, found)
    return [*said, _emitted(step), *_times(step)]


def _offers(step: Mapping[str, Any]) -> Iterator[str]:
    """Who offered what, and why nothing was verified."""
    offers = [
        f"{one['drafter']} was not asked ({one['unasked']})"
        if one["unasked"]
        else f"{one['drafter']} offered {one['nodes']} in {one['ms']:.2f} ms"
        + (f", dropped: {one['fault']}" if one["fault"] else "")
        for one in step["proposals"]
    ]
    if offers:
        yield f"{'; '.join(offers)}. Worth verifying: {len(step['tokens'])}."
    if step["reason"] is not None:
        yield f"Nothing was drafted: {step['reason']}."


def _expected(found: Sequence[Guess]) -> Iterator[str]:
    """How many tokens the step was thought to bring."""
    if not found:
        return
    total = sum(one.survival for one in found)
    terms = " + ".join(f"{one.survival:.2f}" for one in found)
    if len(found) > _LONG:
        terms = f"the survival of {len(found)} guesses"
    yield f"Tokens expected: 1 + {terms} = {1 + total:.2f}."


def _walked(step: Mapping[str, Any], begin: Mapping[str, Any], found: Sequence[Guess]) -> Iterator[str]:
    """From the root down: at each token of the path, the guesses behind it and what became of them."""
    rule, sampling = begin["rule"], begin["sampling"]
    greedy = sampling["temperature"] == 0.0
    for depth, node in enumerate((-1, *step["path"])):
        tried = [
            child
            for child, parent in enumerate(step["parents"])
            if parent == node and found[child].fate != "not reached"
        ]
        last = depth == len(step["path"])
        if not tried:  # a full hit, told where the tokens are counted
            return
        behind = word(step, step["root"] if node < 0 else step["tokens"][node])
        if rule == "coupled" or greedy:
            own = word(step, step["next"] if last else step["tokens"][step["path"][depth]])
            yield f"Behind {behind} the target's own token is {own}. {_compared(tried, found)}"
            if not greedy:
                yield from _raced(step, sampling.get("seed"), depth, tried, found)
        else:
            yield from _judged(behind, tried, found)


def _compared(tried: Sequence[int], found: Sequence[Guess]) -> str:
    """The coupled rule: a guess is kept if it is that token."""
    return " ".join(f"{found[i].word} is {'it: kept' if _kept(found[i]) else 'another: rejected'}." for i in tried)


def _raced(
    step: Mapping[str, Any], seed: int | None, depth: int, tried: Sequence[int], found: Sequence[Guess]
) -> Iterator[str]:
    """What the guesses of one place had in the draw: the token of greatest p / wait is drawn."""
    known = [i for i in tried if found[i].p is not None]
    if seed is None or not known:
        return
    position = step["position"] + 1 + depth
    noise = Noise(seed, Stream.TARGET)
    parts = []
    for i in known:
        token, p = step["tokens"][i], found[i].p or 0.0
        wait = float(noise.exponential(position, token + 1)[token])
        parts.append(f"{found[i].word} p {p:.4f} / wait {wait:.4f} = {p / wait:.4f}")
    yield (
        f"The draw takes the greatest p / wait of all tokens, by the waits of seed {seed} at position {position}: "
        f"{'; '.join(parts)}."
    )


def _judged(behind: str, tried: Sequence[int], found: Sequence[Guess]) -> Iterator[str]:
    """The rejection rule: child by child against what is left of p."""
    left: float | None = 1.0  # of p's mass, while only whole tokens were taken out of it; None where it is not known
    whole = 0.99995  # written with four decimals it is 1
    for i in tried:
        one = found[i]
        if left is None or one.p is None or one.coin is None:
            yield f"Behind {behind}, {one.word}: {'kept' if _kept(one) else 'rejected'} against what is left of p."
            left = None
            continue
        r, q = one.p / left, 1.0 if one.q is None else one.q
        share = "p" if left > whole else "what is left of p"
        figure = f"{r:.4f}" if left > whole else f"{one.p:.4f} / {left:.4f} = {r:.4f}"
        limit = min(1.0, r / q) if q > 0.0 else 1.0
        drawn = f"{share} {figure}" + ("" if one.q is None else f" / q {q:.4f} = {r / q if q > 0.0 else 1.0:.4f}")
        capped = ", so 1" if one.q is not None and q > 0.0 and r > q else ""
        verdict = f"below {limit:.4f}: kept" if _kept(one) else f"not below {limit:.4f}: rejected"
        yield f"Behind {behind}, {one.word}: {drawn}{capped}; chance {one.coin:.4f} is {verdict}."
        if one.q is None and not _kept(one):
            left -= one.p
            if left <= whole:
                yield f"{one.word} is taken out of p, and the rest divided by {left:.4f}."
        elif not _kept(one):
            left = None
            yield "What is left of p is max(0, p - q), made to sum to 1."


def _block(step: Mapping[str, Any], found: Sequence[Guess]) -> Iterator[str]:
    """The block rule: the chain as a whole."""
    coins = ", ".join(f"{one.coin:.4f}" for one in found if one.coin is not None)
    yield (
        f"The chain is judged as a whole: the last place whose chance lies below its bound counts, and that is "
        f"{len(step['path'])} of {len(found)}." + (f" Chances: {coins}." if coins else "")
    )


def _emitted(step: Mapping[str, Any]) -> str:
    """How many tokens came of it."""
    count, emitted = accepted(step), len(step["emitted"])
    if step["own"] is None:
        return f"The answer ended inside the path: {emitted} token{'' if emitted == 1 else 's'}."
    own = f"{OWN[step['own']]} {word(step, step['next'])}"
    if step["own"] == "plain":
        return f"The {own} = 1 token."
    return f"{count} accepted + the {own} = {emitted} token{'' if emitted == 1 else 's'}."


def _times(step: Mapping[str, Any]) -> Iterator[str]:
    """What it cost, and what it saved."""
    took = milliseconds(step)
    laps = " + ".join(f"{phase} {step[f'{phase}_ms']:.2f}" for phase in PHASES)
    shared = f", shared by {step['requests']} requests" if step["requests"] > 1 else ""
    yield f"{laps} = {took:.2f} ms, {step['rows']} row{'' if step['rows'] == 1 else 's'}{shared}."
    if step["plain_ms"] is not None and step["proposals"]:
        emitted, saved = len(step["emitted"]), step["saved_ms"]
        yield (
            f"A plain step is reckoned at {step['plain_ms']:.2f} ms: {emitted} x {step['plain_ms']:.2f} - {took:.2f} = "
            f"{abs(saved):.2f} ms {'saved' if saved >= 0.0 else 'lost'}."
        )


def _kept(one: Guess) -> bool:
    return one.fate in ("accepted", "cut off")
