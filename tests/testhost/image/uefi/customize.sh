#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# systemd-boot on a UEFI machine.
set -eu
echo "UUID=$(printf %.8s "$ROOT_UUID" | tr a-f A-F | sed 's/..../&-/') /boot/efi vfat umask=0077 0 0" >>/etc/fstab
mkdir -p /etc/kernel /boot/efi
echo "root=UUID=$ROOT_UUID ro quiet $GUEST_ARGUMENTS" >/etc/kernel/cmdline
