# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a safetensors model of 4 MiB into the folder named; with a seed and a number, so many shards instead."""

from __future__ import annotations

import json
import os
import random
import sys

ROWS = 1024
INDEX = "model.safetensors.index.json"


def write(path: str, tensor: str, seed: int) -> None:
    """One matrix of float32."""
    data = random.Random(seed).randbytes(ROWS * ROWS * 4)
    header = json.dumps(
        {tensor: {"dtype": "F32", "shape": [ROWS, ROWS], "data_offsets": [0, len(data)]}}
    ).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as handle:
        handle.write(len(header).to_bytes(8, "little") + header + data)


def main() -> None:
    """One file, or shards with a matrix each."""
    folder, seed, shards = sys.argv[1], *map(int, (sys.argv[2:] or ["1", "0"]))
    os.makedirs(folder, exist_ok=True)
    if not shards:
        write(os.path.join(folder, "model.safetensors"), "w", seed)
        return
    names = {f"w{number}": f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)}
    for number, (tensor, name) in enumerate(names.items()):
        write(os.path.join(folder, name), tensor, seed + number)
    with open(os.path.join(folder, INDEX), "w", encoding="utf-8") as handle:
        json.dump({"weight_map": names}, handle)


if __name__ == "__main__":
    main()
