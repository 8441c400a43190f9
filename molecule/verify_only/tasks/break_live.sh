#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Break the running host, one fault after the other; tests/test_found.py has the answer to each.
set -eu

# The file is right, the running kernel is not.
sysctl -qw vm.swappiness=60 kernel.sched_rt_runtime_us=-1 kernel.numa_balancing=1 vm.zone_reclaim_mode=1
echo always > /sys/kernel/mm/transparent_hugepage/enabled
echo f > /proc/irq/default_smp_affinity
echo 15 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages

# The files: ours masked, a later one of a vendor, tuned's profile.
ln -sf /dev/null /etc/sysctl.d/zz-firsttouch.conf
echo 'vm.dirty_ratio = 20' > /etc/sysctl.d/zzz-vendor.conf
mkdir -p /etc/tuned/vendor
echo vendor > /etc/tuned/active_profile
cat > /etc/tuned/vendor/tuned.conf <<'EOF'
[sysctl]
vm.dirty_background_ratio=40
[bootloader]
cmdline_vendor=isolcpus=2
EOF

# The boot arguments: a vendor's drop-in that drops ours, and a grub.cfg that somebody edited.
echo 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"' > /etc/default/grub.d/zzzz-vendor.cfg
sed -i 's/ nohz_full=[^ ]*/ nohz_full=1/' /boot/grub/grub.cfg

# The mount: another one on top with another owner, the unit with another mode, pages eaten by a file that nobody uses.
sed -i 's/mode=0770/mode=0777/' '/etc/systemd/system/dev-hugepages\x2dft.mount'
mount -t hugetlbfs -o pagesize=2M,size=200M,uid=65534,mode=0700 vendor /dev/hugepages-ft
fallocate -l 20M /dev/hugepages-ft/stale

# The isolated CPUs: the interrupt of the network card, one that has yet to come, and a thread. irqbalance, which would
# move them away again some seconds after its start, somebody stopped.
systemctl stop irqbalance
irq_of() { awk -F: -v name="$1" '$0 ~ name { gsub(/ /, "", $1); print $1 }' /proc/interrupts; }
echo 3 > "/proc/irq/$(irq_of virtio1-input)/smp_affinity_list"
echo 1 > "/proc/irq/$(irq_of i8042 | head -n 1)/smp_affinity_list"
systemd-run --quiet --unit=vendor-agent --property=CPUAffinity=3 sleep infinity

# Swap.
dd if=/dev/zero of=/var/vendor.swap bs=1M count=8 status=none
chmod 600 /var/vendor.swap
mkswap -q /var/vendor.swap
swapon /var/vendor.swap

# Who may log in and read what everybody may read.
useradd --create-home --shell /bin/sh auditor
install -d -o auditor -g auditor -m 0700 /home/auditor/.ssh
install -o auditor -g auditor -m 0600 /root/.ssh/authorized_keys /home/auditor/.ssh/authorized_keys
