#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs on the build machine after the packages are in: $1 is the root of the new system,
# $ROOT_UUID the UUID that its file system will get.
set -eu
root=$1
here=$(dirname "$0")

echo firsttouch >"$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 firsttouch\n::1 localhost\n' >"$root/etc/hosts"
echo 'nameserver 10.0.2.3' >"$root/etc/resolv.conf"
echo "UUID=$ROOT_UUID / ext4 errors=remount-ro,noatime 0 0" >"$root/etc/fstab"
: >"$root/etc/machine-id"

# An initramfs with nothing but the way to the disk: unpacking a large one takes seconds under TCG.
sed -i 's/^MODULES=.*/MODULES=list/' "$root/etc/initramfs-tools/initramfs.conf"
printf 'virtio_pci\nvirtio_blk\next4\n' >>"$root/etc/initramfs-tools/modules"
chroot "$root" update-initramfs -u -k all

# The distribution's own file with edits, so that the host looks like one that people have.
sed -i -e 's/^GRUB_TIMEOUT=.*/GRUB_TIMEOUT=0/' \
    -e 's/^GRUB_CMDLINE_LINUX_DEFAULT=.*/GRUB_CMDLINE_LINUX_DEFAULT="quiet"/' \
    -e 's/^GRUB_CMDLINE_LINUX=.*/GRUB_CMDLINE_LINUX="console=ttyS0,115200"/' \
    -e 's/^#\?GRUB_TERMINAL=.*/GRUB_TERMINAL=serial/' "$root/etc/default/grub"
echo 'GRUB_SERIAL_COMMAND="serial --unit=0 --speed=115200"' >>"$root/etc/default/grub"
grep -q '^GRUB_TERMINAL=serial$' "$root/etc/default/grub"
grep -q '^GRUB_CMDLINE_LINUX="console=ttyS0,115200"$' "$root/etc/default/grub"
grep -q '^GRUB_TIMEOUT=0$' "$root/etc/default/grub"

cat >"$root/etc/systemd/network/10-user.network" <<'END'
[Match]
Driver=virtio_net
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
LinkLocalAddressing=no
IPv6AcceptRA=no
END
mkdir -p "$root/etc/systemd/journald.conf.d"
printf '[Journal]\nStorage=volatile\n' >"$root/etc/systemd/journald.conf.d/10-volatile.conf"

# The public key comes over fw_cfg at every boot, so that one image serves hosts with a key each.
install -m 0755 "$here/authorize" "$root/usr/local/sbin/firsttouch-authorize"
install -m 0755 "$here/finish" "$root/usr/local/sbin/firsttouch-finish"
cat >"$root/etc/systemd/system/firsttouch-authorize.service" <<'END'
[Unit]
Description=Accept the SSH key of this test host
DefaultDependencies=no
After=local-fs.target systemd-remount-fs.service
Before=ssh.service shutdown.target
Conflicts=shutdown.target
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/firsttouch-authorize
[Install]
WantedBy=multi-user.target
END
printf 'UseDNS no\nPasswordAuthentication no\n' >"$root/etc/ssh/sshd_config.d/10-testhost.conf"
: >"$root/etc/motd"
rm -f "$root"/etc/update-motd.d/*

chroot "$root" systemctl enable systemd-networkd.service ssh.service firsttouch-authorize.service
chroot "$root" systemctl disable systemd-networkd-wait-online.service
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer \
    e2scrub_all.timer e2scrub_reap.service getty@tty1.service systemd-pstore.service \
    systemd-binfmt.service systemd-update-utmp.service systemd-update-utmp-runlevel.service \
    systemd-journal-catalog-update.service systemd-hwdb-update.service ldconfig.service; do
    chroot "$root" systemctl mask "$unit"
done
rm -f "$root"/etc/apt/apt.conf.d/99mmdebstrap "$root"/var/log/*.log "$root"/var/log/apt/*
