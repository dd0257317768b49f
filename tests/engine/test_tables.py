"""Cost tables as JSON, and the meter that stands still."""

from __future__ import annotations

import json

import numpy as np
import pytest

from augury.bench.replay.recorded import Fixed
from augury.budget import Costs
from augury.conformance.toys import ToyTarget
from augury.engine.costs import Meter
from augury.engine.engine import Engine
from augury.engine.tables import MAX_ROWS, VERSION, CostTable
from augury.errors import InputError

TABLE = CostTable(Costs(np.array([0.0, 10.0, 10.5, 1 / 3 + 11.0]), 0.125, 0.7), {"model": "toy", "threads": 2})


def test_a_table_comes_back_bit_by_bit(tmp_path):
    TABLE.write(tmp_path / "costs.json")
    found = CostTable.read(tmp_path / "costs.json")
    assert found.costs.verify.tolist() == TABLE.costs.verify.tolist()
    assert (found.costs.attend, found.costs.rest) == (0.125, 0.7)
    assert found.measured_on == {"model": "toy", "threads": 2}
    assert found.document() == TABLE.document()
    assert TABLE.document()["version"] == VERSION


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2; this augury reads 1"),
        ({"verify_ms": None}, "verify_ms must be a list of 3 to"),
        ({"verify_ms": [0, 1]}, "verify_ms must be a list of 3 to"),
        ({"verify_ms": [0.0] * (MAX_ROWS + 2)}, f"a list of 3 to {MAX_ROWS + 1} times"),
        ({"verify_ms": [0, 1, "2"]}, "verify_ms[2] is '2'"),
        ({"verify_ms": [0, 1, True]}, "verify_ms[2] is True"),
        ({"verify_ms": [0, 1, float("nan")]}, "verify_ms[2] is nan"),
        ({"verify_ms": [0, 1, 10**400]}, "verify_ms[2] is 1000"),
        ({"verify_ms": [0, 2, 1]}, "never fall"),
        ({"verify_ms": [1, 2, 3]}, "begin with 0"),
        ({"verify_ms": [0, 0, 3]}, "be above 0"),
        ({"attend_ms": -1}, "attend_ms is -1"),
        ({"rest_ms": None}, "rest_ms is None"),
        ({"measured_on": "here"}, "measured_on is 'here'"),
    ],
)
def test_what_is_no_table_is_refused_by_name(change, said):
    with pytest.raises(InputError, match=r".") as refused:
        CostTable.of({**TABLE.document(), **change})
    assert said in str(refused.value)


def test_files_that_are_none_are_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*none.json: No such file"):
        CostTable.read(tmp_path / "none.json")
    for text, said in (("{", "is not JSON"), ("[1]", "it is no cost table"), ("{}", "it is no cost table")):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InputError, match=f"bad.json:? {said}"):
            CostTable.read(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text(json.dumps(TABLE.document()).replace("0.125", "[" * 100_000))
    with pytest.raises(InputError, match="is not JSON"):
        CostTable.read(tmp_path / "bad.json")


def test_the_fixed_meter_stands_still_where_another_learns():
    learns = Meter((1, 2, 65), np.array([10.0, 11.0, 20.0]), 0.0)
    fixed, before = Fixed(TABLE.costs), learns.costs.verify.copy()
    for meter in (fixed, learns):
        with Engine(ToyTarget(4), meter=meter) as engine:
            engine.generate([1, 2], max_tokens=8)
    assert fixed.costs is TABLE.costs
    assert (learns.costs.verify != before).any()
