"""The page is HTML without scripts and links, and its figures are those of the document."""

import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from made import INFO, pair, together

from augury.bench.document import Run, document
from augury.bench.page.page import command, page

ARGUMENTS = {
    "model": "toy", "drafters": "suffix", "file": None, "each": False, "limit": 3, "temperature": [0.0, 0.7],
    "max_tokens": 4, "seed": 0, "kinds": "", "batch": "1,2",
}  # fmt: skip


class Reader(HTMLParser):
    """Tags, attributes and texts, as a browser would see them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    handle_startendtag = handle_starttag

    def handle_data(self, data):
        if data.strip():
            self.texts.append(data.strip())


def made(kind="qa", prompt="p", same=True, drafters="suffix"):
    pairs = [
        pair(f"{prompt}{i}", kind if i % 2 else "rag", turn, 10.0, 10.0 / ratio, same)
        for turn in range(2) for i, ratio in enumerate((2.0, 0.9, 3.0, 1.4, 2.5, 1.1))
    ]  # fmt: skip
    several = [together(size, number, turn, 1.7) for size in (2, 3) for number in range(3) for turn in range(2)]
    runs = [Run(drafters, 0.7, pairs), Run(drafters, 0.0, pairs, several)]
    return json.loads(json.dumps(document(ARGUMENTS, INFO, runs)))


def rows(text):
    """Cells of all tables' rows."""
    tree = ElementTree.fromstring(text)  # it is XML as well
    return [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]


def test_figures_are_those_of_the_document():
    kept = made()
    text = page(kept)
    found, seen = rows(text), Reader(text).texts
    (summary,) = {json.dumps(run["summary"]) for run in kept["runs"]}
    summary = json.loads(summary)
    for row in (*summary["kinds"], summary["overall"]):
        low, high = row["interval"]
        (cells, _) = [cells for cells in found if cells[0] == row["kind"]]
        assert cells[1:7] == [
            f"{row['plain']:.1f}", f"{row['drafted']:.1f}", f"{row['speedup']:.2f}", f"{low:.2f} to {high:.2f}",
            f"{row['slower']:.0%}", f"{row['end_to_end']:.2f}",
        ]  # fmt: skip
        assert cells[9:12] == [f"{row[part]:.1%}" for part in ("draft", "verify", "rest")]
        assert f"{row['kind']}: {row['speedup']:.2f}, 95 % between {low:.2f} and {high:.2f}" in seen
        assert f"{row['kind']}: verify {row['verify']:.1%}" in seen
    batches = kept["runs"][1]["batches"]
    assert [batch["size"] for batch in batches] == [1, 2, 3]
    for batch in batches:
        (cells,) = [cells for cells in found if cells[0] == str(batch["size"])]
        assert cells[1:5] == [
            str(batch["groups"]), f"{batch['plain']:.1f}", f"{batch['drafted']:.1f}", f"{batch['speedup']:.2f}",
        ]  # fmt: skip
        assert f"speed-up: {batch['size']}, {batch['speedup']:.6g}" in seen
    overall = summary["overall"]
    assert f"{overall['worst_speedup']:.2f}" in seen
    assert overall["worst"] == "p1"
    assert "p1: 0.900" in seen  # its dot
    for name, count in overall["accepted"].items():
        assert f"{name}: {count}" in seen


def test_what_was_run_is_said():
    kept = made()
    seen = Reader(page(kept)).texts
    line = "augury bench --model toy --drafters suffix --limit 3 --temperature 0 --temperature 0.7 --max-tokens 4"
    assert f"{line} --seed 0 --batch 1,2" in seen

    text = "\n".join(seen)
    assert kept["machine"]["cpu"] in text
    assert kept["versions"]["python"] in text
    assert kept["commit"] is None or kept["commit"] in text
    assert text.index("Greedy") < text.index("Sampled")


def test_identity_is_in_the_headline():
    assert "12 of 12" in Reader(page(made())).texts  # the run of pairs alone
    assert f"{12 + 12 + 18} of 42" in Reader(page(made())).texts
    assert "0 of 12" in Reader(page(made(same=False))).texts
    assert "not promised" in Reader(page(made(same=None))).texts


def test_nothing_is_loaded_from_anywhere():
    text = page(made())
    seen = Reader(text)
    assert not {"script", "link", "img", "iframe", "object", "a", "base"} & set(seen.tags)
    assert not {"src", "href", "onload", "xlink:href"} & {name for name, _ in seen.attributes}
    assert "url(" not in text
    assert "@import" not in text
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("nasty", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style>&amp;'"])
def test_texts_come_out_inert(nasty):
    kept = made(kind=nasty, prompt=nasty, drafters=nasty)
    kept["arguments"]["model"] = kept["target"]["name"] = kept["commit"] = kept["machine"]["cpu"] = nasty
    kept["versions"][nasty] = nasty
    text = page(kept)
    assert nasty not in text
    seen = Reader(text)
    assert not {"script", "img"} & set(seen.tags)
    assert not any(name.startswith("on") for name, _ in seen.attributes)
    assert nasty in seen.texts
    assert seen.tags.count("svg") == Reader(page(made())).tags.count("svg")


def test_a_run_of_one_prompt_says_that_it_is_too_little():
    one = document(ARGUMENTS, INFO, [Run("suffix", 0.0, [pair("a", "qa", 0, 10.0, 5.0)])])
    text = page(json.loads(json.dumps(one)))
    assert "too few prompts for an interval" in Reader(text).texts
    assert "Several requests at once" not in text
    assert "All runs" not in text


def test_the_command_is_quoted_and_says_what_is_not_the_default_of_nothing():
    said = command({"model": "a b", "each": True, "file": None, "seed": 0, "temperature": [0.0, 1.0], "kinds": ""})
    assert said == "augury bench --model 'a b' --each --seed 0 --temperature 0 --temperature 1"
