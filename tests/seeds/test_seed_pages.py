"""The pages of docs/seeds, and the index of the seeds' vocabulary."""

from __future__ import annotations

import seed_tables

import closeout
from closeout.compat import VOCABULARY


def test_every_name_of_a_seed_is_at_the_top_and_on_its_pages_in_both_languages() -> None:
    assert list(VOCABULARY) == ["000", "001", "002", "003", "004"]
    for seed, names in VOCABULARY.items():
        assert all(name in closeout.__all__ for name in names)
        for page, language in zip(seed_tables.pages(seed), ("en", "zh"), strict=True):
            text = page.read_text("utf-8")
            assert seed_tables.BEGIN.format(seed) in text
            assert text == seed_tables.with_table(text, seed, language), "run python tests/seeds/seed_tables.py"
