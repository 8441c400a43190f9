# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection as the tools need it: the checkout as an importable tree, and the installed tarball."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import tarfile
from pathlib import Path

from commands import BUILD, ROOT, CommandError, run

IMPORT = BUILD / "import"
INSTALLED = BUILD / "collections"
COLLECTION = INSTALLED / "ansible_collections" / "firsttouch" / "host"
# A collection of the same name in the user's own ANSIBLE_HOME must not be taken for this one.
ANSIBLE_HOME = BUILD / "ansible"
# Nothing of this is for hosts or for users of the tarball.
NOT_FOR_USERS = re.compile(r"(tests|molecule|runtime/tests|build|bench|tools|Makefile|pyproject\.toml|\.[^/]|.*/\.)")


def ansible_env(collections: Path) -> dict[str, str]:
    """The environment in which Ansible's programs see nothing but the collections below COLLECTIONS."""
    return {"ANSIBLE_HOME": str(ANSIBLE_HOME), "ANSIBLE_COLLECTIONS_PATH": str(collections)}


def link_checkout() -> None:
    """Make the checkout importable as ansible_collections.firsttouch.host below build/import."""
    link = IMPORT / "ansible_collections" / "firsttouch" / "host"
    link.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(ROOT)


@functools.cache
def build_tarball() -> Path:
    """Build the collection into build/dist. Raises CommandError when it holds what is not for users."""
    dist = BUILD / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    run("ansible-galaxy", "collection", "build", ROOT, "--output-path", dist, "--force")
    (tarball,) = dist.glob("firsttouch-host-*.tar.gz")
    with tarfile.open(tarball) as archive:
        stray = [name for name in archive.getnames() if NOT_FOR_USERS.match(name)]
    if stray:
        raise CommandError(f"the tarball holds what is not for its users: {', '.join(stray[:5])}")
    return tarball


@functools.cache
def install_tarball(target: Path = INSTALLED) -> None:
    """Build the collection and install its tarball below TARGET, as a user would; once in a run."""
    tarball = build_tarball()
    shutil.rmtree(target, ignore_errors=True)
    install = ("ansible-galaxy", "collection", "install", tarball, "-p", target, "--offline", "--no-deps")
    run(*install, env=ansible_env(target))
