# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m testhost`` with PYTHONPATH=tests, or ``python tests/testhost``."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - the reader of this line may be older than the rest needs
    sys.exit("testhost: needs Python 3.11 or newer; this is " + sys.version.split()[0])
if not __package__:
    # Run by directory, which has put this package's own modules on the path in place of the package.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from testhost.cli import main

sys.exit(main(sys.argv[1:]))
