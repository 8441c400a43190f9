# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a safetensors model of 4 MiB into the folder that is named."""

from __future__ import annotations

import json
import os
import random
import sys

ROWS = 1024


def main() -> None:
    """One matrix of float32."""
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    data = random.Random(1).randbytes(ROWS * ROWS * 4)
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [ROWS, ROWS], "data_offsets": [0, len(data)]}}
    ).encode()
    header += b" " * (-len(header) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as handle:
        handle.write(len(header).to_bytes(8, "little") + header + data)


if __name__ == "__main__":
    main()
