"""``python -m augury.conformance`` on the command line."""

from __future__ import annotations

import pytest

from augury.conformance.__main__ import main


def test_help_is_help(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "usage: python -m augury.conformance" in said
    assert "module:Class" in said


def test_an_unknown_option_or_drafter_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--fast"])
    assert ended.value.code == 2
    assert "--fast" in capsys.readouterr().err
    assert main(["ngran"]) == 2
    assert "did you mean 'ngram'?" in capsys.readouterr().err


def test_a_named_drafter_alone_is_tried(capsys):
    assert main(["augury.conformance.toys:Empty"]) == 1  # which never guesses, so that nothing is proved
    said = capsys.readouterr().out
    assert said.startswith("augury.conformance.toys:Empty: FAILED")
    assert "toy target" not in said
