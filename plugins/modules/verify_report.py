#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_report
short_description: Write the reports of a fleet that was verified
version_added: 0.1.0
description:
  - Runs on the controller only; no host is contacted. Used by the role P(firsttouch.host.verify#role) with C(run_once).
  - Collects what M(firsttouch.host.host_verify) has kept of each host of the play, registered as
    C(__firsttouch_verified), and writes C(report.json), C(report.junit.xml) and C(report.html). A host without answers
    is in them as an error.
attributes:
  check_mode:
    support: full
    description: Writes the reports in check mode too; they are what the run is for.
  diff_mode:
    support: none
    description: There is nothing to compare.
options:
  state:
    description:
      - V(prepared) checks the tags and O(fail_on), and that the directory can be written, before any host is asked.
      - V(written) writes the reports.
    type: str
    choices: [prepared, written]
    default: written
  report_dir:
    description:
      - Directory on the controller. C(firsttouch-report) beside the inventory when empty.
    type: str
    default: ""
  fail_on:
    description:
      - The statuses that make a host fail.
    type: list
    elements: str
    choices: [fail, warn, not_evaluated]
    default: [fail]
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Write the reports
  firsttouch.host.verify_report:
    report_dir: /srv/reports/nightly
  run_once: true
  delegate_to: localhost
"""

RETURN = r"""
report_dir:
  description: The absolute path of the directory.
  type: str
  returned: success
outcome:
  description: V(pass), V(failed), V(unreachable) or V(failed_and_unreachable).
  type: str
  returned: when written
  sample: pass
summary:
  description: Number of hosts, of failed ones, and of hosts by state.
  type: dict
  returned: when written
failed_hosts:
  description: The failed hosts, and why.
  type: dict
  returned: when written
unreachable_hosts:
  description: The hosts that could not be reached, and why.
  type: dict
  returned: when written
"""
