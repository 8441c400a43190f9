#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_collect
short_description: Record a host as a small sysroot on the controller
version_added: 0.1.0
description:
  - Records the files of C(/proc), C(/sys), C(/etc) and C(/boot) that this collection reads, as one archive on
    the controller. Unpacked, it
    serves as O(firsttouch.host.numa_topology_info#module:sysroot) of every module that has such an option.
  - Of the processes only the threads on isolated CPUs are recorded (when all can be seen), of the packages only those
    of kernels and drivers. Who has huge pages mapped is no part of a recording.
  - Only reads on the host, opens nothing but regular files, and stops at a limit of size, number and time.
  - Host names, addresses, UUIDs, machine ids, serial numbers, people's accounts and values that look like
    secrets are replaced, each by
    the same stand-in everywhere. Look an archive over before you hand it on.
author:
  - First Touch contributors (@firsttouch)
attributes:
  check_mode:
    support: full
    description: Reads the host, and does not write the archive.
  diff_mode:
    support: none
    description: The archive is binary.
  idempotent:
    support: partial
    description: Counters of a running host change, and with them the archive.
options:
  dest:
    description:
      - File on the controller. It gets the suffix C(.tar.xz), or C(.tar.gz) where the Python of the host has
        no xz, unless it ends so.
        Missing directories are made.
      - One that ends with a slash is a directory, and the file in it is named after the host. Names that are more than
        letters, digits and C(._-) get a hash, as no name of a host may lead out of it.
    type: path
    required: true
  scrub:
    description: Replace what identifies the host, its users and its secrets.
    type: bool
    default: true
  sysroot:
    description: Directory on the host to record, when it is not C(/).
    type: path
    default: /
  max_seconds:
    description: Stop after so many seconds and return what there is, with RV(complete) V(false).
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Record the host
  firsttouch.host.host_collect:
    dest: recordings/

- name: Read the recording again, once it is unpacked
  firsttouch.host.numa_topology_info:
    sysroot: /srv/recordings/host-17
  delegate_to: localhost
"""

RETURN = r"""
dest:
  description: The archive on the controller.
  returned: success
  type: str
  sample: recordings/host-17.tar.xz
size:
  description: Its size in bytes.
  returned: success
  type: int
entries:
  description: Number of files, links and directories in it.
  returned: success
  type: int
skipped:
  description:
    - Files and directories that could not be read, with the reason. Each is a link to itself in the archive, so that
      a verification of it takes none of them for absent.
  returned: success
  type: dict
complete:
  description: Whether no limit was hit.
  returned: success
  type: bool
changes:
  description: The archive, when it was or would be written.
  returned: success
  type: list
  elements: dict
  sample: [{"resource": "file:recordings/host-17.tar.xz", "before": null, "after": "written"}]
"""

import base64

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils._collect import Limits, collect


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "required": True},
            "scrub": {"type": "bool", "default": True},
            "sysroot": {"type": "path", "default": "/"},
            "max_seconds": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    limits = Limits(seconds=float(module.params["max_seconds"]))
    recording = collect(module.params["sysroot"], scrub=module.params["scrub"], limits=limits)
    module.exit_json(
        changed=False,
        # Taken out of the result by the action plugin, which writes it.
        archive=base64.b64encode(recording.archive).decode("ascii"),
        compression=recording.compression,
        size=len(recording.archive),
        entries=recording.entries,
        skipped=recording.skipped,
        complete=recording.complete,
    )


if __name__ == "__main__":
    main()
