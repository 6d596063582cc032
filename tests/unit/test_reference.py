"""The settings reference is what the settings are."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge import reference
from edge.settings import Settings


def test_the_page_is_current() -> None:
    assert reference.main(["--check"]) == 0, "run python -m edge.reference --write"


def test_every_setting_is_in_it_once() -> None:
    text = reference.render()
    for key, field in Settings.model_fields.items():
        assert text.count(f"### `{key}`\n") == 1
        assert field.description
        assert field.description in text


def test_every_section_is_there_in_order() -> None:
    titles = [line[3:] for line in reference.render().splitlines() if line.startswith("## ")]
    assert titles == list(reference.SECTIONS.values())


def test_a_stale_page_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "settings.md"
    assert reference.check(page) == 1
    page.write_text(reference.render().replace("`2048`", "`1024`"), encoding="utf-8")
    assert reference.check(page) == 1
    assert "run python -m edge.reference --write" in capsys.readouterr().err


def test_other_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main([]) == 2
    assert "usage:" in capsys.readouterr().err
