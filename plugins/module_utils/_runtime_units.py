# SPDX-License-Identifier: Apache-2.0
"""The systemd units of models and servers, and the files that they read, as texts of rows of the plan.

One whole unit file for each instance, no template with drop-ins: what a host has is what the plan holds, to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ._systemd import HUGEPAGES_SERVICE, MARKER

SLICE = "firsttouch.slice"
COMMAND = "/opt/firsttouch/current/bin/firsttouch"
CALLS = "@system-service mbind set_mempolicy get_mempolicy move_pages membarrier"
# Three descriptors for each lane, listeners, segment and holder's own: what the runtime puts into the store.
_PER_LANE, _OTHERS = 3, 8
_NOT_FOR_FILES = ("push", "mount_unit", "mount_group", "models", "load_timeout_s", "python_path")
_HARDENED = f"""\
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=no
DevicePolicy=closed
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictNamespaces=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter={CALLS}
SystemCallErrorNumber=EPERM
UMask=0007
"""


def weights_unit(name: str) -> str:
    """The unit that loads model NAME."""
    return f"firsttouch-weights@{name}.service"


def server_unit(name: str) -> str:
    """The unit of server NAME."""
    return f"firsttouch-server@{name}.service"


def _setting(path: str) -> str:
    """PATH in a setting, where % begins a specifier."""
    return path.replace("%", "%%")


def _argument(path: str) -> str:
    """PATH in a command, where $ begins a variable too."""
    return _setting(path).replace("$", "$$")


def render_slice() -> str:
    """The slice of both: what they take is accounted together."""
    return f"""{MARKER}
[Unit]
Description=First Touch: model weights and inference servers

[Slice]
CPUAccounting=yes
MemoryAccounting=yes
"""


def render_weights(model: Mapping[str, Any], housekeeping: str) -> str:
    """The oneshot that loads MODEL at boot: after its mount, on the HOUSEKEEPING CPUs."""
    mount = model["mount_unit"]
    affinity = f"CPUAffinity={housekeeping}\n" if housekeeping else ""
    return f"""{MARKER}
[Unit]
Description=Weights of {model["name"]} in huge pages
After={mount} {HUGEPAGES_SERVICE} systemd-tmpfiles-setup.service
BindsTo={mount}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={COMMAND} weights load --model {model["name"]}
# A model that is not loaded any more (8) is as wanted.
ExecStop=-{COMMAND} weights rm {model["name"]} --dir {_argument(model["mount"])}
TimeoutStartSec={model["load_timeout_s"]}
Slice={SLICE}
User=firsttouch
Group=firsttouch
SupplementaryGroups={model["mount_group"]}
{affinity}LimitMEMLOCK=infinity
ReadWritePaths={_setting(model["mount"])} -/run/firsttouch
{_HARDENED}\
PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX

[Install]
WantedBy=multi-user.target
"""


def render_server(server: Mapping[str, Any], models: Sequence[Mapping[str, Any]], housekeeping: str) -> str:
    """The unit of SERVER, which opens MODELS. Its serving thread pins itself; all others stay on HOUSEKEEPING."""
    weights = " ".join(weights_unit(model["name"]) for model in models)
    needs = f"Requires={weights}\n" if weights else ""
    groups = sorted({str(model["mount_group"]) for model in models})
    supplementary = f"SupplementaryGroups={' '.join(groups)}\n" if groups else ""
    folders = sorted({_setting(model["mount"]) for model in models})
    reads = f"ReadOnlyPaths={' '.join(folders)}\n" if folders else ""
    affinity = f"CPUAffinity={housekeeping}\n" if housekeeping else ""
    fifo = server.get("fifo_priority")
    priority = f"LimitRTPRIO={fifo}\n" if fifo else "LimitRTPRIO=0\nRestrictRealtime=yes\n"
    policy = f"NUMAPolicy=preferred\nNUMAMask={server['node']}\n" if server.get("node") is not None else ""
    where = server.get("python_path")
    path = f"Environment=PYTHONPATH={where}\n" if where else ""
    tcp = server["transport"] == "tcp"
    writes = sorted(
        {*_folders(server.get("metrics"), server.get("address") if not tcp else None), "-/run/firsttouch"}
    )
    families = "AF_UNIX AF_INET AF_INET6" if tcp else "AF_UNIX"
    network = "After=network-online.target\nWants=network-online.target\n" if tcp else ""
    alone = "" if tcp else "PrivateNetwork=yes\n"
    after = " ".join(filter(None, [weights, HUGEPAGES_SERVICE, "systemd-tmpfiles-setup.service"]))
    return f"""{MARKER}
[Unit]
Description=Inference server {server["name"]}
After={after}
{needs}{network}StartLimitIntervalSec=60
StartLimitBurst=30

[Service]
Type=notify
NotifyAccess=main
ExecStart={COMMAND} serve --server {server["name"]}
WatchdogSec=10
Restart=always
RestartSec=0
RestartPreventExitStatus=2 10
# What was asked and is not answered yet lies in memory that systemd keeps while the server is started again.
FileDescriptorStoreMax={_PER_LANE * server.get("lanes", 64) + _OTHERS}
TimeoutStartSec=300
TimeoutStopSec=15
KillMode=mixed
Slice={SLICE}
User=firsttouch
Group=firsttouch
{supplementary}{affinity}{policy}{path}LimitMEMLOCK=infinity
LimitNOFILE=4096
{priority}ReadWritePaths={" ".join(writes)}
{reads}{_HARDENED}\
{alone}RestrictAddressFamilies={families}

[Install]
WantedBy=multi-user.target
"""


def _folders(*places: str | None) -> list[str]:
    """The folders of PLACES, paths or addresses that are paths, which must exist."""
    return [place.partition("://")[2].rpartition("/")[0] or "/" if "://" in place else place.rpartition("/")[0] or "/"
            for place in places if place]  # fmt: skip


def model_file(model: Mapping[str, Any]) -> str:
    """/etc/firsttouch/models/NAME.json."""
    return _file(model)


def server_file(server: Mapping[str, Any]) -> str:
    """/etc/firsttouch/servers/NAME.json."""
    return _file(server)


def sampler_file(server: Mapping[str, Any]) -> str:
    """/etc/firsttouch/samplers/NAME.env: with it in its environment a sampler needs no configuration."""
    address = server.get("address") or f"auto://{server['name']}"
    return f"{MARKER}\nFIRSTTOUCH_ADDRESS={address}\n"


def _file(row: Mapping[str, Any]) -> str:
    document = {"schema_version": 1, **{key: row[key] for key in row if key not in _NOT_FOR_FILES}}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"
