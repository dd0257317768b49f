"""The conformance kit: is a drafter or a target fit for lossless decoding? Runs on any of them, ours or yours.

>>> from augury.conformance.kit import check_drafter
>>> print(check_drafter(lambda target: MyDrafter()))

A check that met nothing to check (a drafter that never guessed) fails: it has proved nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from augury.conformance.cache import check_target
from augury.conformance.exact import NotEnumerable
from augury.conformance.law import bound, distance, empirical, engine_law, true_law
from augury.conformance.report import Check, Report
from augury.conformance.toys import Drift, SameLaw, ToyTarget, Turns
from augury.drafters.drafter import Drafter, Rule
from augury.engine.engine import Engine
from augury.record import RequestRecord
from augury.sampling import Sampling

__all__ = ["Check", "Report", "check_drafter", "check_target"]

MakeDrafter = Callable[[ToyTarget], Drafter]

PROMPTS = ((1, 2, 3, 1, 2), (0,), (2, 2, 4, 2, 2, 4, 2, 2), (3, 0, 1, 2, 3, 0, 1))
"""Token ids below five; some repeat themselves, so that drafters that look things up find something."""

SAMPLINGS = {
    "greedy": Sampling(),
    "flat": Sampling(temperature=1.3, seed=1),
    "filtered": Sampling(temperature=0.9, top_k=4, top_p=0.9, min_p=0.02, typical_p=0.98, seed=2),
    "penalised": Sampling(
        temperature=0.7, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.4, seed=3
    ),
    "guided": Sampling(repetition_penalty=1.1, min_tokens=6, bad_words=((1, 2), (3,)), logit_bias={0: 1.0}),
    "processor": Sampling(temperature=1.0, processors=(Drift(),), seed=4),
    "grammar": Sampling(temperature=1.0, grammar=Turns(), min_tokens=3, stop_token_ids=(4,), seed=5),
}  # fmt: skip
"""Parameters under which a drafter must not change a token."""


def check_drafter(
    make: MakeDrafter,
    *,
    name: str = "drafter",
    rules: Sequence[Rule] = ("coupled", "rejection", "block"),
    samples: int = 10_000,
) -> Report:
    """Try a drafter on toy targets.

    Args:
        make: builds the drafter for a toy target; called often, so it should be cheap.
        name: for the report.
        rules: acceptance rules to try.
        samples: answers that are counted where a law cannot be known exactly.
    """
    checks: list[Check] = []
    if "coupled" in rules:
        checks += _same_tokens(make)
    for rule in rules:
        if rule != "coupled":
            checks += _same_law(make, rule, samples)
    return Report(name, tuple(checks))


def _same_tokens(make: MakeDrafter) -> list[Check]:
    """The same seed gives the same tokens, drafted or not, alone or in company, whatever is asked."""
    target = ToyTarget(5, seed=11)
    records: list[RequestRecord] = []
    wrong: list[str] = []
    apart: list[str] = []
    it = [("it", make(target))]
    with Engine(target, eos_ids=(4,)) as plain, Engine(target, it, eos_ids=(4,), slots=3) as drafted:
        for kind, sampling in SAMPLINGS.items():
            for ignore in (True, False):
                truth = [plain.generate(p, sampling, max_tokens=30, ignore_eos=ignore) for p in PROMPTS]
                for prompt, true in zip(PROMPTS, truth, strict=True):
                    # What is predicted is right in part, so that a drafter which uses it is right in part.
                    right = [t if i % 7 else (t + 1) % 5 for i, t in enumerate(true.tokens)]
                    hint = right if drafted.reads_prediction else None
                    try:
                        one = drafted.generate(prompt, sampling, max_tokens=30, ignore_eos=ignore, prediction=hint)
                    except Exception as error:
                        wrong.append(f"{kind}, prompt {list(prompt)}: {type(error).__name__}: {error}")
                        continue
                    records.append(one.record)
                    if (one.tokens, one.finish_reason) != (true.tokens, true.finish_reason):
                        wrong.append(f"{kind}, prompt {list(prompt)}: {_apart(true.tokens, one.tokens)}")
                if wrong:
                    continue
                together = drafted.generate_all(PROMPTS, sampling, max_tokens=30, ignore_eos=ignore)
                for prompt, true, one in zip(PROMPTS, truth, together, strict=True):
                    if one.tokens != true.tokens:
                        apart.append(f"{kind}, prompt {list(prompt)}: {_apart(true.tokens, one.tokens)}")
    tokens, answers = sum(r.completion_tokens for r in records), len(records)
    faults = [p.fault for r in records for s in r.steps for p in s.proposals if p.fault]
    drafted_, accepted = sum(r.drafted for r in records), sum(r.accepted for r in records)
    return [
        Check("same tokens as plain decoding", not wrong, wrong[0] if wrong else f"{tokens} tokens, {answers} answers"),
        Check("same tokens in a batch", not apart, apart[0] if apart else f"{answers} answers, three at a time"),
        Check("contract", not faults, faults[0] if faults else "no proposal was dropped"),
        Check("something was drafted", drafted_ > 0, f"{drafted_} draft tokens, {accepted} accepted"),
    ]


def _apart(true: Sequence[int], other: Sequence[int]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(true, other, strict=False)) if a != b), min(len(true), len(other)))
    return f"answers part at token {at}"


LAWS = {
    "plain": Sampling(temperature=1.0),
    "processed": Sampling(
        temperature=0.8, top_k=2, repetition_penalty=1.3, frequency_penalty=0.5, processors=(Drift(),)
    ),
    "grammar": Sampling(temperature=1.0, grammar=Turns()),
}
"""Parameters under which the law of answers is computed."""

SLANTED = (0.35, 0.4, 0.25)
"""Law of the target on which answers of sampling drafters are counted."""


TOYS = ((3, 3, 3), (4, 1, 2))
"""(vocabulary, seed, tokens of an answer) of the toy targets on which laws are computed."""


def _same_law(make: MakeDrafter, rule: Rule, samples: int) -> Iterator[Check]:
    """Answers follow the target's law: exactly where all branches can be run, else as counted.

    Where drafts were sampled they are counted as well, since noise used twice cannot be seen branch by branch.
    """
    prompt = (0, 2, 1, 0, 2)
    kind_of = make(ToyTarget(3))
    hint = (1, 0, 2, 2, 1, 0) if kind_of.reads_prediction else None
    drafted, sampled, failed, counted = 0, False, False, list[ToyTarget]()
    for vocab, seed, length in TOYS:
        target = ToyTarget(vocab, seed)

        def engine(target: ToyTarget = target, length: int = length) -> Engine:
            made = Engine(target, [("it", make(target))], acceptance=rule, eos_ids=(2,))
            if kind_of.remembers:  # something to guess from; a greedy answer is no branch of chance
                made.generate(prompt, max_tokens=length + 2, ignore_eos=True)
            return made

        with engine() as one:
            guided = Sampling(temperature=1.0, grammar=Turns(), stop_token_ids=(2,), seed=5)
            seeds = [*(Sampling(temperature=1.0, seed=s) for s in range(5)), guided]
            answers = []
            for seeded in seeds:
                try:
                    answers.append(one.generate(prompt, seeded, max_tokens=12, ignore_eos=True, prediction=hint))
                except Exception as error:
                    yield Check(f"answers under {rule}", False, f"{type(error).__name__}: {error}")
        steps = [step for answer in answers for step in answer.record.steps]
        drafted += sum(step.drafted for step in steps)
        sampled = sampled or any(step.sampled for step in steps)
        for kind, sampling in LAWS.items():
            name = f"law under {rule}, {kind}, {vocab} tokens, exact"
            try:
                law = engine_law(engine, prompt, sampling, length, hint, limit=3000)
            except NotEnumerable as error:
                if target not in counted:
                    counted.append(target)
                yield Check(name, True, f"not possible, so counted below: {error}")
                continue
            except Exception as error:
                yield Check(name, False, f"{type(error).__name__}: {error}")
                continue
            apart = distance(law, true_law(target, prompt, sampling, length, (2,)))
            failed = failed or apart >= 1e-6
            yield Check(name, apart < 1e-6, f"total variation {apart:.1e}")
    yield Check(f"something was drafted under {rule}", drafted > 0, f"{drafted} draft tokens")
    if failed:
        return  # counting is slower and sees less
    if sampled:
        counted.append(SameLaw(SLANTED))
    for target in counted:
        truth = true_law(target, prompt, LAWS["plain"], 2)
        with Engine(target, [("it", make(target))], acceptance=rule) as one:
            apart = distance(empirical(one, prompt, LAWS["plain"], 2, samples), truth)
        most = bound(truth, samples)
        where = "the same law everywhere" if isinstance(target, SameLaw) else f"{target.info.vocab_size} tokens"
        figures = f"total variation {apart:.4f}, by chance up to {most:.4f}"
        yield Check(f"law under {rule}, {where}, counted", apart < most, figures)
