#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# What somebody did to the boot arguments before the reboot: a vendor's drop-in asks for pages of node 0 ahead of ours, and
# the first count for a page size is the one that the kernel takes; and for a page of a node that is not there.
set -eu
cat > /etc/default/grub.d/50-vendor.cfg <<'EOF'
GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX hugepagesz=2M hugepages=0:20 hugepagesz=1G hugepages=7:1"
EOF
update-grub
