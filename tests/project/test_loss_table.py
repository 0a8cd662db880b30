"""The catalogue in docs/ agrees with the code."""

from __future__ import annotations

import loss_table


def test_the_catalogue_page_is_written_from_the_code() -> None:
    assert loss_table.PAGE.read_text(encoding="utf-8") == loss_table.page()
