"""One process of a group: runs the checks of a topic, and writes a report."""

from __future__ import annotations

import json
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import checks


def main(topic: str, rank: int, size: int, store: str, report: str) -> None:
    """Run every check of a topic; errors are reported, and the other checks run if the group still works."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    found = {}
    for name, check in checks.TOPICS[topic].items():
        try:
            found[name] = check(dist.group.WORLD)
        except Exception:  # noqa: BLE001  (it is reported)
            found[name] = {"error": traceback.format_exc()}
        Path(report).write_text(json.dumps(found))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
