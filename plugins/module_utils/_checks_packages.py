# SPDX-License-Identifier: Apache-2.0
"""Kernel and driver packages that are newer than what boots: warnings, nobody asked for a version."""

from __future__ import annotations

import os
from collections.abc import Iterator

from . import _kernel_packages as kp
from ._checks_host import REBOOT, Check, Context
from ._checks_lines import NoLine, layers_of, line_of
from ._tree import Tree
from ._verdict import Result, judge, skipped

_NEWEST, _INITRD = "boot.newest_kernel", "boot.initrd"


def _next_kernel(ctx: Context) -> tuple[str | None, str, str]:
    """(version of the kernel that boots next, the file that says so, else why none does)."""
    entry, line = layers_of(ctx).entry, line_of(ctx, "next_boot")
    if isinstance(line, NoLine):
        return None, line.file, line.reason
    return (entry.version or None) if entry else None, line.file, "not_available"


def check_newest(ctx: Context) -> Iterator[Result]:
    """The newest kernel in /boot against the entry that boots: an old one stays when nobody regenerated."""
    tree = Tree(ctx.root)
    found = kp.kernels(tree)
    version, source, why = _next_kernel(ctx)
    if kp.BOOT in tree.trouble or not found or version is None:
        reason = why if found else "no_kernel_image"
        reason = tree.reason(kp.BOOT) if kp.BOOT in tree.trouble else reason
        where = source if found else kp.BOOT
        yield skipped(_NEWEST, "next_boot", reason, observed=found or None, source=where, intended=False)
        return
    newest = found[-1]
    yield judge(
        _NEWEST,
        "next_boot",
        newest,
        version,
        good=kp.kernel_order(version) >= kp.kernel_order(newest),
        reason="newer_kernel_installed",
        source=source,
        remedy="A newer kernel is installed than boots: generate the boot entries anew, or remove it; then run "
        f"provision, {REBOOT} decides on the reboot.",
        intended=False,
    )


def check_initrd(ctx: Context) -> Iterator[Result]:
    """The initial RAM disk of the kernel that boots: there, and not older than the modules it was made from."""
    tree = Tree(ctx.root)
    version, source, why = _next_kernel(ctx)
    if version is None:
        yield skipped(_INITRD, "next_boot", why, source=source, intended=False)
        return
    initrd = kp.initrd_of(tree, version)
    if kp.BOOT in tree.trouble:
        yield skipped(_INITRD, "next_boot", tree.reason(kp.BOOT), source=kp.BOOT, intended=False)
        return
    modules = f"/lib/modules/{version}/modules.dep"
    built = kp.changed_at(ctx.root, initrd) if initrd else None
    changed = kp.changed_at(ctx.root, modules)
    if initrd and (built is None or changed is None):
        reason = "not_available" if ctx.live else "not_recorded"
        yield skipped(_INITRD, "next_boot", reason, observed=initrd, source=modules, intended=False)
        return
    if not initrd and not ctx.live and not any(name.startswith("init") for name in tree.names(kp.BOOT)):
        yield skipped(_INITRD, "next_boot", "not_recorded", source=kp.BOOT, intended=False)
        return
    older = bool(initrd and built is not None and changed is not None and built < changed)
    yield judge(
        _INITRD,
        "next_boot",
        "not older than its modules",
        "older than its modules" if older else "not older than its modules" if initrd else None,
        reason="initrd_older_than_modules" if older else "initrd_missing",
        source=initrd or kp.BOOT,
        remedy=f"Make it anew before {REBOOT} boots it: update-initramfs -u -k {version}, or dracut -f --kver "
        f"{version}.",
        intended=False,
    )


def check_packages(ctx: Context) -> Iterator[Result]:
    """Kernel, initramfs and driver packages that dpkg left half done, and kernels without their image."""
    identity, text = "boot.packages", ctx.raw(kp.DPKG)
    if text is None:
        # Other package managers keep no such file: there the files of /boot must do.
        if ctx.names("/etc/apt") is not None:
            reason = "not_available" if ctx.live else "not_recorded"
            yield skipped(identity, "next_boot", reason, source=kp.DPKG, intended=False)
        return
    found = kp.packages(text)
    names = set(ctx.names(kp.BOOT) or ())
    rows = [f"{row.name} {row.version} is {row.state}" for row in found if row.state != "installed"]
    for row in found:
        version = kp.image_version(row)
        if version and row.state == "installed" and not {f"vmlinuz-{version}", f"vmlinux-{version}"} & names:
            rows.append(f"{row.name} {row.version} has no image in {kp.BOOT}")
    yield judge(
        identity,
        "next_boot",
        [],
        rows,
        reason="package_half_done",
        source=kp.DPKG,
        remedy=f"Run dpkg --configure -a, then provision again, before {REBOOT} boots what is half installed.",
        intended=False,
    )


def check_drivers(ctx: Context) -> Iterator[Result]:
    """DKMS drivers: built for the kernel that boots next, and of the version that is loaded."""
    tree = Tree(ctx.root)
    found = list(kp.drivers(tree))
    refused = next((path for path in tree.trouble if path.startswith(kp.DKMS)), None)
    if refused:
        yield skipped("boot.drivers", "next_boot", tree.reason(refused), source=refused, intended=False)
    version, source, why = _next_kernel(ctx)
    for name in dict.fromkeys(driver.name for driver in found):
        mine = [driver for driver in found if driver.name == name]
        built = sorted({kernel for driver in mine for kernel in driver.built_for}, key=kp.kernel_order)
        identity = f"boot.driver.{name}"
        if version is None:
            yield skipped(identity, "next_boot", why, observed=built, source=source, intended=False)
            continue
        yield judge(
            identity,
            "next_boot",
            version,
            built,
            good=version in built,
            reason="driver_not_built",
            source=os.path.join(kp.DKMS, name),
            remedy=f"The next boot has no {name}: dkms autoinstall -k {version}, before {REBOOT} boots it.",
            intended=False,
        )
        yield from _loaded(tree, name, [d.version for d in mine if version in d.built_for])


def _loaded(tree: Tree, name: str, versions: list[str]) -> Iterator[Result]:
    """Whether the driver that is loaded is the one that the next boot loads."""
    live, installed = kp.loaded_version(tree, name), kp.newest(versions)
    if live is None or installed is None:
        return
    yield judge(
        f"boot.driver.{name}.loaded",
        "next_boot",
        installed,
        live,
        reason="driver_changes",
        source=os.path.join(kp.DKMS, name),
        remedy=f"The next boot brings another {name}: its user-space libraries may already be the new ones.",
        intended=False,
    )


CHECKS = (
    Check(_NEWEST, ("next_boot",), check_newest, lambda ctx: False),
    Check(_INITRD, ("next_boot",), check_initrd, lambda ctx: False),
    Check("boot.packages", ("next_boot",), check_packages, lambda ctx: False),
    Check("boot.driver", ("next_boot",), check_drivers, lambda ctx: False),
)
