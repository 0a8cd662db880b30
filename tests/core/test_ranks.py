"""Arrays that ranks send to each other."""

from __future__ import annotations

import numpy as np

from portable_nce._core import ranks


def test_labels_of_swapped_bytes_keep_their_numbers_between_ranks() -> None:
    assert ranks.widened(np.asarray([2**31], dtype=np.dtype(np.uint32).newbyteorder())).tolist() == [2**31]
