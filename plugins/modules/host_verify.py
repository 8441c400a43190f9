#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_verify
short_description: Verify a host against its plan without changing anything
version_added: 0.1.0
description:
  - Compares the plan of a host with four layers, what is configured, what the next boot will bring, what runs
    and what a short measurement shows, and answers check by check. No fault ends it early.
  - Absent, unreadable, not evaluated and wrong are four different answers. What a user without privileges cannot
    read is V(not_evaluated) with its path, never V(pass).
  - Reads only. The measured layer tries for a moment, in child processes, to take real-time priority and to
    place a little memory on each node, as M(firsttouch.host.numa_placement_verify) does.
extends_documentation_fragment:
  - firsttouch.host._attributes.reads_only
options:
  plan:
    description:
      - The plan, as M(firsttouch.host.host_plan) returns it.
      - When neither O(plan) nor O(intent) is given, C(/etc/firsttouch/plan.json) of the host.
    type: dict
  intent:
    description:
      - The C(firsttouch_*) values without their prefix; the plan is computed from them and the host.
      - Where the host was provisioned with another plan, the result has a warning V(plan_drift).
      - Where it does not fit the host, as after a CPU or memory was lost, each refusal is a result C(plan.refused) with
        V(fail), and the host is verified against C(/etc/firsttouch/plan.json), where there is one.
      - With nothing but C(numa), C(transport_policy) and C(latency_target_us) in it, which manage nothing, the rest of
        the intent is that of C(/etc/firsttouch/plan.json), where there is one.
      - Mutually exclusive with O(plan).
    type: dict
  layers:
    description:
      - The layers to look at.
    type: list
    elements: str
    choices: [configured, next_boot, running, measured]
    default: [configured, next_boot, running, measured]
  concerns:
    description:
      - Only checks of these concerns; all of them when empty.
    type: list
    elements: str
    choices:
      - plan
      - hugepages
      - units
      - boot
      - cpu_isolation
      - vm_sysctls
      - rt_scheduling
      - numa
      - thp
      - services
      - kubelet
      - numa_balancing
      - memory
      - runtime
    default: []
  fail:
    description:
      - Whether the module fails when a check has a status of O(fail_on).
    type: bool
    default: false
  fail_on:
    description:
      - The statuses that count as failed for O(fail). V(fail) includes V(error), a check that broke.
      - V(not_evaluated) counts what the plan asks for and could not be looked at, nothing else.
    type: list
    elements: str
    choices: [fail, warn, not_evaluated]
    default: [fail]
  sysroot:
    description:
      - Directory below which the host's files are read, for a recorded host.
      - It may be an unpacked sosreport, of which what C(sos report) does not copy is V(not_evaluated).
      - Nothing can be measured there, so the measured layer is V(not_evaluated).
    type: path
    default: /
  report_dir:
    description:
      - Directory on the controller where the answers are kept as C(hosts/NAME.json) as soon as they arrive, which
        is how C(firsttouch.host.verify) uses this module.
      - A short table goes to the terminal, and instead of RV(results), RV(table), RV(host) and RV(plan_used) the task
        returns RV(state) and RV(file). It then never fails, whatever the host does, so that no host ends the run.
      - Without O(plan) and O(intent) the intent is made of the C(firsttouch_*) variables of the host, when any that
        asks for something is set. Without O(concerns) the tags of the run choose them.
    type: path
seealso:
  - module: firsttouch.host.host_plan
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Verify the host against what it was provisioned with
  firsttouch.host.host_verify:
  register: result

- name: Show what was wanted and what is live
  ansible.builtin.debug:
    msg: "{{ result.table }}"

- name: Stop when the running kernel differs from the intent
  firsttouch.host.host_verify:
    intent:
      hugepages:
        - size: 2M
          nodes: {0: 300, 1: 200}
    layers: [running]
    fail: true
"""

RETURN = r"""
verdict:
  description:
    - V(pass), V(fail), or V(incomplete) when something that the plan asks for could not be looked at.
  type: str
  returned: always
  sample: pass
ok:
  description: Whether RV(verdict) is V(pass).
  type: bool
  returned: always
summary:
  description: Number of results per status.
  type: dict
  returned: always
  sample: {pass: 31, fail: 0, warn: 1, not_applicable: 2, not_evaluated: 0, error: 0}
results:
  description: All answers in a fixed order.
  type: list
  elements: dict
  returned: always
  contains:
    id:
      description: Dotted name of the check, beginning with its concern.
      type: str
      sample: hugepages.pool.2M.node1
    concern:
      description: The concern.
      type: str
      sample: hugepages
    status:
      description: V(pass), V(fail), V(warn), V(not_applicable), V(not_evaluated) or V(error).
      type: str
      sample: fail
    layer:
      description: V(configured), V(next_boot), V(running) or V(measured).
      type: str
      sample: running
    intended:
      description: Whether the plan asks for it. What nobody asks for is never V(fail).
      type: bool
    expected:
      description: What the plan asks for; null when it asks for nothing.
      type: raw
      sample: 160
    observed:
      description: What is there; null when nothing is.
      type: raw
      sample: 159
    reason:
      description: Code of the cause.
      type: str
      sample: allocation_short
    source:
      description: The file, or the file and line, that decides or shows it.
      type: str
      sample: /etc/sysctl.d/99-vendor.conf:3
    remedy:
      description: What to do, with the variable that mends it.
      type: str
table:
  description: Lines for people, what was wanted and what is live; causes and remedies below.
  type: list
  elements: str
  returned: always
host:
  description:
    - What a report draws of the host. C(kernel), C(arch), C(hypervisor), C(bare_metal), C(memory_bytes),
      C(warnings) about its topology; C(cpus) (C(online), C(offline), C(isolated), C(nohz_full)), C(sockets), C(cores)
      with more than one thread, C(nodes) with CPUs, memory and distances, and C(pools) with pages C(asked), C(got),
      C(free) and C(surplus) by size and node.
    - C(trust) has the verdict about the topology with its evidence and C(co_scheduling), as
      M(firsttouch.host.numa_topology_verify) returns it, and the C(transport) of the plan.
    - CPU lists are in the kernel's notation; null is what is not known.
  type: dict
  returned: always
plan_used:
  description: The plan verified against, C(digest) and C(sections) (digests), and the C(intent) it was made from.
  type: dict
  returned: always
state:
  description: V(pass), V(fail), V(incomplete), V(unreachable), or V(error) when nothing could be verified.
  type: str
  returned: with O(report_dir)
file:
  description: The file on the controller that holds the answers.
  type: str
  returned: with O(report_dir)
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils._checks import CONCERNS, run
from ansible_collections.firsttouch.host.plugins.module_utils._checks_host import Context
from ansible_collections.firsttouch.host.plugins.module_utils._intent import PREFIX, Refusal, manages
from ansible_collections.firsttouch.host.plugins.module_utils._plan import facts_for, make_plan
from ansible_collections.firsttouch.host.plugins.module_utils._record import StateError, read_plan
from ansible_collections.firsttouch.host.plugins.module_utils._sosreport import of as sosreport
from ansible_collections.firsttouch.host.plugins.module_utils._verdict import (
    LAYERS,
    failures_text,
    summary,
    table,
    verdict,
)
from ansible_collections.firsttouch.host.plugins.module_utils._verify_view import host_view, plan_view

# What is planned from the plan of another variable, in this order: without that it would be another one.
RESTS_ON = {
    "hugetlbfs_mounts": {"hugepages"},
    "extra_free_bytes": {"hugepages"},
    "irqbalance": {"isolated_cpus"},
    "models": {"hugepages", "hugetlbfs_mounts", "isolated_cpus"},
    "servers": {"isolated_cpus", "models"},
    "kubelet": {"hugepages", "isolated_cpus"},
}


def context_of(module):
    """The plan to verify against and the host, or fail_json."""
    given, root = module.params, module.params["sysroot"]
    if not os.path.isdir(root):
        module.fail_json(msg=f"sysroot: {root} is not a directory that can be looked into", reason="no_sysroot")
    inner = reports_below(root)
    if inner:
        msg = f"sysroot: {root} holds unpacked sosreports, and is none: give {' or '.join(inner[:3])}"
        module.fail_json(msg=msg, reason="no_sysroot")
    unusable = None
    try:
        recorded = read_plan(root)
    except StateError as exc:
        if given["plan"] is None and given["intent"] is None:
            module.fail_json(msg=str(exc), reason=exc.reason)
        recorded, unusable = None, (exc.reason, str(exc))
    if given["plan"] is not None:
        return Context(given["plan"], root)
    if given["intent"] is None:
        return Context(recorded or {}, root, is_recorded=True)
    intent = given["intent"]
    if recorded and not manages(intent):
        intent = {**recorded["intent"], **intent}
    planned, unknown = plan_of_recorded(intent, root, recorded)
    if planned.refusals:
        # A CPU or a DIMM that was lost must not end the look at everything else.
        return Context(
            recorded or {},
            root,
            recorded=recorded,
            unusable=unusable,
            refusals=planned.refusals,
            is_recorded=True,
            unplanned=unknown,
        )
    # Through JSON, as the record went: its keys are text.
    plan = json.loads(json.dumps(planned.plan))
    return Context(plan, root, recorded=recorded, unusable=unusable, unplanned=unknown, made_anew=True)


def reports_below(root):
    """The unpacked sosreports in the directory ROOT, which is no host itself: archives have one folder at their top."""
    if any(os.path.isdir(os.path.join(root, name)) for name in ("proc", "sys", "etc")):
        return []
    try:
        names = sorted(os.listdir(root))
    except PermissionError:  # what has a known path in it can still be read
        return []
    found = (os.path.join(root, name) for name in names)
    return [path for path in found if sosreport(os.path.realpath(path)) is not None]


def plan_of_recorded(intent, root, recorded):
    """The plan of INTENT, and the refusals of what it does without: what was not recorded of the host under ROOT."""
    unknown: list[Refusal] = []
    while True:
        planned = make_plan(intent, facts_for(intent, root), recorded)
        more = [row for row in planned.refusals if row.unrecorded and row.variable.removeprefix(PREFIX) in intent]
        if not more:
            return planned, unknown
        unknown += more
        left = {row.variable.removeprefix(PREFIX) for row in more}
        intent = {name: value for name, value in intent.items() if name not in left}
        for name, needed in RESTS_ON.items():
            missing = needed.intersection(left)
            if intent.get(name) is not None and missing:
                text = f"{PREFIX}{name}: rests on {PREFIX}{min(missing)}, of which too little was recorded"
                unknown.append(Refusal("not_recorded", text, f"{PREFIX}{name}", unrecorded=True))
                left.add(name)
                del intent[name]


def main():
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict"},
            "intent": {"type": "dict"},
            "layers": {"type": "list", "elements": "str", "choices": list(LAYERS), "default": list(LAYERS)},
            "concerns": {"type": "list", "elements": "str", "choices": list(CONCERNS), "default": []},
            "fail": {"type": "bool", "default": False},
            "fail_on": {
                "type": "list",
                "elements": "str",
                "choices": ["fail", "warn", "not_evaluated"],
                "default": ["fail"],
            },
            "sysroot": {"type": "path", "default": "/"},
            "report_dir": {"type": "path"},
        },
        mutually_exclusive=[("plan", "intent")],
        supports_check_mode=True,
    )
    given = module.params
    if not given["layers"]:
        module.fail_json(msg=f"layers: none is left to look at; there are {', '.join(LAYERS)}", reason="no_layers")
    ctx = context_of(module)
    results = run(ctx, given["layers"], given["concerns"])
    answer = verdict(results)
    returned = {
        "changed": False,
        "verdict": answer,
        "ok": answer == "pass",
        "summary": summary(results),
        "results": [result.as_dict() for result in results],
        "table": table(results),
        "host": host_view(ctx),
        "plan_used": plan_view(ctx.plan),
    }
    statuses = set(given["fail_on"]) | ({"error"} if "fail" in given["fail_on"] else set())
    bad = [r for r in results if r.status in statuses and (r.intended or r.status != "not_evaluated")]
    if given["fail"] and bad:
        module.fail_json(msg=failures_text(bad), reason="verification_failed", **returned)
    module.exit_json(**returned)


if __name__ == "__main__":
    main()
