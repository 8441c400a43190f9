# SPDX-License-Identifier: GPL-3.0-or-later
"""A model of three files and an index, made in a guest on nothing but its Python: FOLDER SEED."""

import json
import random
import sys
from pathlib import Path

BYTES = 9 << 20


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for number in range(3):
        name, file = f"layer{number}.weight", f"model-{number + 1:05}-of-00003.safetensors"
        row = {"dtype": "F16", "shape": [BYTES // 2], "data_offsets": [0, BYTES]}
        header = json.dumps({name: row}).encode()
        data = random.Random(seed + number).randbytes(BYTES)
        (folder / file).write_bytes(len(header).to_bytes(8, "little") + header + data)
        weights[name] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))


main()
