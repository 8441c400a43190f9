# SPDX-License-Identifier: GPL-3.0-or-later
"""A bootable Debian under QEMU: real GRUB, real NUMA nodes, real reboots."""
