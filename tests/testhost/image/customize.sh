#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs inside the new system after its packages are in. $ROOT_UUID is the UUID that its file system will get, $FIRMWARE
# the folder with what the boot loader needs.
set -eu
here=$(dirname "$0")

echo firsttouch >/etc/hostname
printf '127.0.0.1 localhost\n127.0.1.1 firsttouch\n::1 localhost\n' >/etc/hosts
rm -f /etc/resolv.conf
echo 'nameserver 10.0.2.3' >/etc/resolv.conf
echo "UUID=$ROOT_UUID / ext4 errors=remount-ro,noatime 0 0" >/etc/fstab

# An initramfs with nothing but the way to the disk: unpacking a large one takes seconds under TCG.
sed -i 's/^MODULES=.*/MODULES=list/' /etc/initramfs-tools/initramfs.conf
printf 'virtio_pci\nvirtio_blk\next4\n' >>/etc/initramfs-tools/modules
update-initramfs -u -k all

# panic=10: with several vCPUs TCG can run a stale breakpoint of the kernel's own text patching; the next boot is a
# good one.
GUEST_ARGUMENTS='console=ttyS0,115200 panic=10' sh "$here/$FIRMWARE/customize.sh"

cat >/etc/systemd/network/10-user.network <<'END'
[Match]
Driver=virtio_net
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
LinkLocalAddressing=no
IPv6AcceptRA=no
END
mkdir -p /etc/systemd/journald.conf.d /etc/systemd/system-generators
printf '[Journal]\nStorage=volatile\n' >/etc/systemd/journald.conf.d/10-volatile.conf
# It looks for a vsock, which this machine has not, and complains on the console.
ln -s /dev/null /etc/systemd/system-generators/systemd-ssh-generator

# The public key comes over fw_cfg at every boot, so that one image serves hosts with a key each.
install -m 0755 "$here/authorize" /usr/local/sbin/firsttouch-authorize
install -m 0755 "$here/finish" /usr/local/sbin/firsttouch-finish
install -m 0755 "$here/$FIRMWARE/finish" /usr/local/sbin/firsttouch-finish-loader
cat >/etc/systemd/system/firsttouch-authorize.service <<'END'
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
printf 'UseDNS no\nPasswordAuthentication no\n' >/etc/ssh/sshd_config.d/10-testhost.conf
: >/etc/motd
rm -f /etc/update-motd.d/*

systemctl enable systemd-networkd.service ssh.service firsttouch-authorize.service
systemctl disable systemd-networkd-wait-online.service
systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer \
    e2scrub_all.timer e2scrub_reap.service getty@tty1.service systemd-pstore.service \
    systemd-binfmt.service systemd-update-utmp.service systemd-update-utmp-runlevel.service \
    systemd-journal-catalog-update.service systemd-hwdb-update.service ldconfig.service
rm -f /etc/apt/apt.conf.d/99mmdebstrap /var/log/*.log /var/log/apt/*
