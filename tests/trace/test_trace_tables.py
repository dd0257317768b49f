"""Tables: the schema of specspecs 0.1.0 by name and type, its questions asked of ours, and what is ours behind it."""

from __future__ import annotations

import tempfile
from pathlib import Path as File

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from test_timeline import told_of
from traced import DRAFTERS, header, told, traces

from augury.conformance.toys import ToyTarget, oracle
from augury.engine.engine import Engine
from augury.errors import AuguryError, MissingPackage
from augury.record import RequestRecord, StepRecord
from augury.trace import tables
from augury.trace.figures import figures
from augury.tree import DraftTree, Path

SEQUENCES = pa.schema(
    [
        ("run_id", pa.string()),
        ("sequence_id", pa.string()),
        ("t", pa.timestamp("us")),
        ("prompt_token_ids", pa.list_(pa.int64())),
        ("prompt_len", pa.int32()),
    ]
)
DRAFTS = pa.schema(
    [
        ("run_id", pa.string()),
        ("sequence_id", pa.string()),
        ("step", pa.int32()),
        ("t", pa.timestamp("us")),
        ("draft_tokens", pa.list_(pa.int64())),
        ("acceptances", pa.list_(pa.bool_())),
        ("k", pa.int16()),
        ("acceptance_length", pa.int16()),
        ("emitted_token", pa.int32()),
    ]
)
"""As specspecs 0.1.0 writes them."""


def step(tree, nodes, emitted, *, root=1, position=9, next_token=50, began=0.0):
    return StepRecord(
        position, root, tree, Path(nodes, next_token), emitted, (), None, len(tree) + 1, 1.0, 9.0, 0.5, 0.25, 0.25,
        began=began,
    )  # fmt: skip


def connect(folder):
    """The views that its viewer asks."""
    con = duckdb.connect()
    for name in ("drafts", "sequences"):
        con.execute(f"CREATE VIEW {name} AS SELECT * FROM '{folder}/{name}-*.parquet'")
    return con


@pytest.fixture
def written(tmp_path):
    def write(rows, **options):
        paths = tables.write(tmp_path / "run", header(zero=0.0), rows, **options)
        assert [path.suffix for path in paths] == [".parquet"] * 2
        assert sorted(paths) == sorted((tmp_path / "run").iterdir()), "nothing half-written is left"
        return connect(tmp_path / "run")

    return write


#          root
#         /    \
#     0 10      1 11
#     /  \        \
#  2 12   3 13     4 14
TREE = DraftTree.of([10, 11, 12, 13, 14], [-1, -1, 0, 0, 1], [0.9, 0.5, 0.4, 0.8, 0.2])


def test_their_columns_come_first_by_name_and_type(written, tmp_path):
    written(told(1, RequestRecord(3, DRAFTERS, steps=[step(TREE, (0,), (10, 50))]), text=True))
    for name, schema in (("sequences", SEQUENCES), ("drafts", DRAFTS)):
        (path,) = (tmp_path / "run").glob(f"{name}-*.parquet")
        found = pq.read_schema(path)
        assert [found.field(i) for i in range(len(schema))] == list(schema)
        assert len(found) > len(schema)


def test_how_a_tree_becomes_a_chain(written):
    steps = [
        step(TREE, (0,), (10, 50)),  # 13 was refused, and was likelier than 12
        step(TREE, (1, 4), (11, 14, 50), root=50),  # a whole hit
        step(DraftTree.empty(), (), (51,), root=50, next_token=51),
        step(TREE, (), (52,), root=51, next_token=52),
        step(TREE, (0, 2), (10, 12), root=52),  # the answer ended with an accepted token
    ]
    con = written(told(1, RequestRecord(3, DRAFTERS, steps=steps)))
    assert con.execute(
        "SELECT draft_tokens, acceptances, k, acceptance_length, emitted_token, drafted, accepted FROM drafts"
        " ORDER BY step"
    ).fetchall() == [
        ([10, 13], [True, False], 2, 1, 50, 5, 1),
        ([50, 11, 14], [True, True, True], 3, 3, 50, 5, 2),
        ([50], [True], 1, 1, 51, 0, 0),
        ([51, 10, 13], [True, False, False], 3, 1, 52, 5, 0),
        ([52, 10, 12], [True, True, True], 3, 2, 12, 5, 2),
    ]  # fmt: skip
    assert con.execute("SELECT tokens, steps FROM sequences").fetchall() == [(9, 5)]


def test_everything_of_a_step_is_there(written):
    one = StepRecord(
        9, 1, TREE, Path((0,), 50), (10, 50), (), None, 6, 1.0, 9.0, 0.5, 0.25, 0.25,
        (0.5, 0.25, 0.125, 0.1, float("nan")), {3: 0.25}, 0.002, 8.0, 3, (0.5, None, 0.75, 0.5, None),
    )  # fmt: skip
    record = RequestRecord(10, DRAFTERS, 4, 2.0, [one], "stop", 50)
    con = written(told(7, record, label="plain", pair="qa"))
    assert con.execute(
        "SELECT request, position, root, tokens, parents, drafter, fate, survival, p, q, coins, path, emitted, own,"
        " rows, requests, draft_ms, verify_ms, accept_ms, commit_ms, rest_ms, plain_ms, saved_ms, proposals FROM drafts"
    ).fetchall() == [
        (
            7, 9, 1, [10, 11, 12, 13, 14], [-1, -1, 0, 0, 1], ["suffix"] * 5,
            ["accepted", "not reached", "rejected", "rejected", "not reached"], [0.9, 0.5, 0.4, 0.8, 0.2],
            [0.5, 0.25, 0.125, 0.1, None], [None, None, None, 0.25, None], [0.5, None, 0.75, 0.5, None], [0], [10, 50],
            "correction", 6, 3, 1.0, 9.0, 0.5, 0.25, 0.25, 8.0, 5.0, [],
        )
    ]  # fmt: skip
    assert con.execute(
        "SELECT label, pair, rule, cached_tokens, prefill_ms, finish, stop, error, prompt_token_ids, prompt_len,"
        " drafters FROM sequences"
    ).fetchall() == [("plain", "qa", "coupled", 4, 2.0, "stop", "50", None, [], 10, list(DRAFTERS))]


def generated(con, sequence):
    """Tokens as its viewer puts them together: of every row but the first it leaves the first draft token out."""
    rows = con.execute(
        "SELECT step, draft_tokens, acceptances, k, acceptance_length, emitted_token FROM drafts"
        " WHERE sequence_id = ? ORDER BY step",
        [sequence],
    ).fetchall()
    out, seen = [], []
    for place, (_, draft, acceptances, k, accepted, emitted) in enumerate(rows):
        assert len(draft) == len(acceptances) == k
        assert place == 0 or draft[0] == out[-1], "a row begins with what the row before emitted"
        out += [*draft[1 if place else 0 : accepted], emitted]
        seen.append(accepted)
    # "distinct generated tokens = accepted + 1", of which its figures are made.
    assert not rows or len(out) == sum(seen) + 1
    return out


def test_their_queries_give_our_answers(written):
    target = ToyTarget(5, seed=3)
    with Engine(target, [("oracle", oracle([1, 0, 1] * 20, 2, 5))], slots=2) as engine:
        results = engine.generate_all([[0, 2, 1], [1, 2], [2, 2, 2]], max_tokens=17)
    con = written([row for id, one in enumerate(results, 1) for row in told_of(id, one.record)])
    listed = con.execute(
        "SELECT s.sequence_id, count(d.step) FROM sequences s LEFT JOIN drafts d USING (sequence_id)"
        " GROUP BY s.sequence_id, s.t ORDER BY s.t"
    ).fetchall()
    assert len(listed) == 3
    for sequence, count in listed:
        one = results[int(sequence.partition("-")[0]) - 1]
        assert count == len(one.record.steps)
        assert generated(con, sequence) == list(one.tokens)
        run, length = con.execute(
            "SELECT run_id, prompt_len FROM sequences WHERE sequence_id = ?", [sequence]
        ).fetchone()
        assert sequence.endswith(run)
        assert length == one.record.prompt_tokens
        drafted, accepted = con.execute(
            "SELECT sum(drafted), sum(accepted) FROM drafts WHERE sequence_id = ?", [sequence]
        ).fetchone()
        assert (drafted, accepted) == (figures(one.record).drafted, figures(one.record).accepted)


@settings(max_examples=40)
@given(traces())
def test_any_trace_becomes_tables(rows):
    with tempfile.TemporaryDirectory() as folder:
        tables.write(File(folder), header(), rows)
        con = connect(folder)
        steps = [row for row in rows if row["kind"] == "step"]
        ids = {row["id"] for row in rows if row["kind"] != "load"}
        assert con.execute("SELECT count(*) FROM drafts").fetchone() == (len(steps),)
        assert con.execute("SELECT count(DISTINCT sequence_id) FROM sequences").fetchone() == (len(ids),)
        accepted = sum(min(len(row["path"]), len(row["emitted"])) for row in steps)
        assert con.execute("SELECT coalesce(sum(accepted), 0) FROM drafts").fetchone() == (accepted,)
        con.close()


def test_a_sequence_whose_beginning_is_not_in_the_trace(written):
    steps = [step(TREE, (0,), (10, 50)), step(TREE, (1,), (11, 50), root=50), step(TREE, (), (50,), root=50)]
    rows = told(1, RequestRecord(3, DRAFTERS, steps=steps))
    con = written(rows[2:])
    (sequence, length) = con.execute("SELECT sequence_id, prompt_len FROM sequences").fetchone()
    assert length is None
    assert generated(con, sequence) == [11, 50, 50]


def test_one_request_alone(written):
    rows = [*told(1, RequestRecord(3, ())), *told(2, RequestRecord(4, ()))]
    assert written(rows, only=2).execute("SELECT request, prompt_len FROM sequences").fetchall() == [(2, 4)]


def test_several_runs_lie_in_one_folder(tmp_path):
    for zero in (0.0, 5.0):
        head = header(zero=zero) | {"unix": 1000.0 + zero}
        tables.write(tmp_path, head, told(1, RequestRecord(3, ())))
    assert connect(tmp_path).execute("SELECT count(DISTINCT run_id) FROM sequences").fetchone() == (2,)


def test_where_nothing_may_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(AuguryError, match=r"the tables cannot be written to .*: File exists"):
        tables.write(tmp_path / "file", header(), [])
    with pytest.raises(AuguryError, match=r"the tables cannot be written to /proc/none: "):
        tables.write(File("/proc/none"), header(), [])


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingPackage, match=r"pip install 'augury\[trace\]'"):
        tables.write(tmp_path, header(), [])
