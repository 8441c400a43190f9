#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubelet_info
short_description: Compare the huge pages of a Kubernetes node with its host, and check the pods that ask for them
version_added: 0.1.0
description:
  - A kubelet counts huge pages once, when it starts, and does not see who else uses them. This compares what its
    node offers with the pools of the host, and finds what the API server would refuse about pods.
  - Talks to no cluster, the objects are given. It never fails because of what a host or an object shows.
extends_documentation_fragment:
  - firsttouch.host._attributes.reads_only
options:
  node:
    description:
      - The Node object of this host, of which C(status.capacity) is read, or that mapping as C(capacity).
    type: dict
  pods:
    description:
      - Pods, as objects or manifests; each is checked. Also objects that hold a template of pods, such as a
        Deployment, a StatefulSet or a CronJob, and lists of these.
    type: list
    elements: dict
    default: []
  pods_requested:
    description:
      - What the pods of the node may use, such as C(hugepages-2Mi) V(512Mi). Without it and without
        O(pods_on_node) nothing is said about use outside of Kubernetes.
    type: dict
  pods_on_node:
    description:
      - Whether O(pods) are all pods of the node, so that their limits are what its pods may use.
      - A List stands for its items. A template, as a Deployment has it, is refused (V(not_a_pod)).
    type: bool
    default: false
  sysroot:
    description:
      - Directory that holds the C(/sys) to read. Anything but C(/) is a recorded host.
    type: path
    default: /
seealso:
  - module: firsttouch.host.hugepages_info
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Compare the node with its host
  firsttouch.host.kubelet_info:
    node: "{{ lookup('ansible.builtin.file', 'node.json') | from_json }}"
  register: kubelet

- name: Check a pod before it is sent
  firsttouch.host.kubelet_info:
    pods:
      - apiVersion: v1
        kind: Pod
        metadata: {name: worker}
        spec:
          containers:
            - name: worker
              image: example/worker
              resources:
                limits: {hugepages-2Mi: 512Mi, cpu: 2}
  register: kubelet
  failed_when: kubelet.verdict == 'fail'
"""

RETURN = r"""
node_results:
  description:
    - A row per page size, with C(size), C(node_bytes) (what the node offers), C(host_bytes) (all pages of the
      pool), C(available_bytes) (free and not reserved), C(outside_pages) (used by nobody that Kubernetes knows,
      V(null) where that is not known), C(verdict), C(reason), C(text), C(hint).
    - A pool in use is no difference, what a node offers does not shrink with use.
  returned: when O(node) is given
  type: list
  elements: dict
  sample:
    - size: 2M
      node_bytes: 0
      host_bytes: 2147483648
      available_bytes: 2147483648
      outside_pages: null
      verdict: fail
      reason: kubelet_capacity_stale
      text: the node says 0 bytes of 2M pages, the host has 2147483648
      hint: restart the kubelet, it reads the pools only when it starts; reserve them before that
pod_results:
  description:
    - A row per pod, with C(name), C(verdict), C(reason) (of the first finding) and C(findings), each of these
      with C(reason), C(where), C(text), C(hint).
    - Reasons are V(needs_cpu_or_memory), V(not_whole_pages), V(request_differs_from_limit), V(bad_quantity),
      V(no_spec).
  returned: always
  type: list
  elements: dict
verdict:
  description: V(pass), V(fail), or V(not_evaluated) when nothing was given or a pool cannot be read.
  returned: always
  type: str
reason:
  description: The first reason why it is not V(pass).
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils._hugepages import read_pools
from ansible_collections.firsttouch.host.plugins.module_utils._kubelet import (
    NotAPod,
    capacity_of,
    check_pod,
    huge_resources,
    judge_node,
    name_of,
    requested,
)


def pod_row(pod):
    """What is wrong with one pod."""
    findings = [finding.as_dict() for finding in check_pod(pod)]
    reason = findings[0]["reason"] if findings else None
    return {"name": name_of(pod), "verdict": "fail" if findings else "pass", "reason": reason, "findings": findings}


def node_rows(params):
    """What the node says against the host. Raises ValueError."""
    used = None
    if params["pods_requested"] is not None:
        used = huge_resources(params["pods_requested"])
    elif params["pods_on_node"]:
        used = requested(params["pods"])
    return judge_node(capacity_of(params["node"]), used, read_pools(params["sysroot"]))


def worst(rows):
    """(verdict, reason) of ROWS together."""
    for verdict in ("fail", "not_evaluated"):
        for row in rows:
            if row["verdict"] == verdict:
                return verdict, row["reason"]
    return ("pass", None) if rows else ("not_evaluated", "nothing_given")


def main():
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "dict"},
            "pods": {"type": "list", "elements": "dict", "default": []},
            "pods_requested": {"type": "dict"},
            "pods_on_node": {"type": "bool", "default": False},
            "sysroot": {"type": "path", "default": "/"},
        },
        mutually_exclusive=[("pods_requested", "pods_on_node")],
        supports_check_mode=True,
    )
    pods = [pod_row(pod) for pod in module.params["pods"]]
    result = {"pod_results": pods}
    nodes = []
    if module.params["node"] is not None:
        try:
            nodes = result["node_results"] = node_rows(module.params)
        except ValueError as exc:
            reason = "not_a_pod" if isinstance(exc, NotAPod) else "bad_quantity"
            module.fail_json(msg=str(exc), reason=reason)
    verdict, reason = worst([*pods, *nodes])
    module.exit_json(changed=False, verdict=verdict, reason=reason, **result)


if __name__ == "__main__":
    main()
