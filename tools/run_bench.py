# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the benchmarks of bench/, print their tables and write build/bench/NAME.json.

Each bench/NAME.py has a function measure() that returns rows of figure, value, unit, goal and met. A goal is a
sentence or null; met is null where there is none, or no value: that is what could not be measured. A goal that is
missed is shown and fails nothing; a benchmark that cannot run leaves no figures, does not keep the others from
running, and fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collection import link_checkout
from commands import BUILD, ROOT, CommandError

COLUMNS = ("figure", "value", "unit", "goal", "met")


def shown(value: Any) -> str:
    """A cell of the table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def check_rows(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Raise CommandError unless ROWS are what the table and those who read the file rely on."""
    for row in rows:
        if set(row) != set(COLUMNS):
            raise CommandError(f"{name}: a row has {', '.join(row)} instead of {', '.join(COLUMNS)}")
        number = isinstance(row["value"], (int, float)) and not isinstance(row["value"], bool)
        if not number and row["value"] is not None:
            raise CommandError(f"{name}: {row['figure']} is {row['value']!r}, no number")
        if (row["met"] is not None) != (number and row["goal"] is not None):
            raise CommandError(f"{name}: {row['figure']} has a goal without a verdict, or one without a goal")
    if not rows:
        raise CommandError(f"{name} has measured nothing")


def run_one(name: str, target: Path) -> None:
    """Measure NAME, write its file and print its table. Raises CommandError; there is no file then."""
    file = target / f"{name}.json"
    file.unlink(missing_ok=True)
    rows = importlib.import_module(name).measure()
    check_rows(name, rows)
    file.write_text(json.dumps(rows, indent=2) + "\n")
    print_rows(name, rows)


def print_rows(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print the table of one benchmark."""
    table = [COLUMNS, *(tuple(shown(row[column]) for column in COLUMNS) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    print(f"\n{name}")
    for line in table:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def main() -> int:
    """Run the benchmarks that are named, or all."""
    names = sorted(path.stem for path in (ROOT / "bench").glob("[!_]*.py"))
    parser = argparse.ArgumentParser(description="Run the benchmarks of bench/.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names)}")
    chosen = parser.parse_args().names or names
    unknown = sorted(set(chosen) - set(names))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(names)}")
    link_checkout()
    sys.path.insert(0, str(ROOT / "bench"))
    target = BUILD / "bench"
    target.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in chosen:
        print(f"measuring {name} ...", flush=True)
        try:
            run_one(name, target)
        except CommandError as error:
            failed.append(name)
            print(f"FAILED: {error}", flush=True)
        except Exception:  # noqa: BLE001 - whatever a benchmark trips over, the others still run
            failed.append(name)
            print(f"FAILED: {traceback.format_exc()}", flush=True)
    if failed:
        print(f"\nnot measured: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
