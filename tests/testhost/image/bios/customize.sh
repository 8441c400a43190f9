#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# GRUB on a BIOS machine. The distribution's own file with edits, so that the host looks like one that people have.
set -eu
sed -i -e 's/^GRUB_TIMEOUT=.*/GRUB_TIMEOUT=0/' \
    -e 's/^GRUB_CMDLINE_LINUX_DEFAULT=.*/GRUB_CMDLINE_LINUX_DEFAULT="quiet"/' \
    -e "s/^GRUB_CMDLINE_LINUX=.*/GRUB_CMDLINE_LINUX=\"$GUEST_ARGUMENTS\"/" \
    -e 's/^#\?GRUB_TERMINAL=.*/GRUB_TERMINAL=serial/' /etc/default/grub
echo 'GRUB_SERIAL_COMMAND="serial --unit=0 --speed=115200"' >>/etc/default/grub
for line in GRUB_TERMINAL=serial "GRUB_CMDLINE_LINUX=\"$GUEST_ARGUMENTS\"" GRUB_TIMEOUT=0 \
    'GRUB_CMDLINE_LINUX_DEFAULT="quiet"'; do
    grep -qxF "$line" /etc/default/grub || { echo "/etc/default/grub lacks $line" >&2; exit 1; }
done
