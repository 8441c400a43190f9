# SPDX-License-Identifier: Apache-2.0
"""Everything that this package raises. Imports nothing of the package.

The words: closed (you did it), broken (the other side or the kernel did it), busy (someone else has it), expired
(too late), refused (not allowed), unsupported (not on this machine).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class FirstTouchError(Exception):
    """Base of all. FACTS are what the message was made from; HINT is the remedy in one sentence, or empty."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts: dict[str, Any] = dict(facts or {})

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.message, self.hint, self.facts)


def _again(kind: type[FirstTouchError], message: str, hint: str, facts: dict[str, Any]) -> FirstTouchError:
    """An error as it was before it crossed a process boundary."""
    return kind(message, hint=hint, facts=facts)


class ArgumentError(FirstTouchError, ValueError):
    """Raised for an argument that makes no sense, before anything is looked at."""

    code = "argument"
    exit_status = 2


# Of the machine.


class UnsupportedError(FirstTouchError):
    """Raised when this kernel, machine or Python cannot do it; says what would be needed."""

    code = "unsupported"
    exit_status = 10


class KernelError(FirstTouchError):
    """Raised when a system call fails that should not; facts has call and errno, `__cause__` is the OSError."""

    code = "kernel"


class AffinityError(FirstTouchError):
    """Raised when a thread cannot run where it was asked to."""

    code = "affinity"


class PlanError(FirstTouchError):
    """Raised for a plan.json that cannot be read or is none."""

    code = "plan"
    exit_status = 2


class ConfigError(FirstTouchError):
    """Raised for a file of a server or a model that is not as it must be; facts has file, key and value."""

    code = "config"
    exit_status = 2


# Of the transport.


class TransportError(FirstTouchError):
    """Base of what client and server raise."""

    code = "transport"


class AddressError(TransportError, ValueError):
    """Raised for an address that cannot be read or is not allowed."""

    code = "address"
    exit_status = 2


class ClosedError(TransportError):
    """Raised when you use what you have closed. For a peer that went away see BrokenError."""

    code = "closed"


class BrokenError(TransportError):
    """Raised when the peer died or hung up before it answered; facts has its pid where it is known."""

    code = "broken"
    # Of infer(): whether the server had the request, or may have had it.
    tried = False


class BusyError(TransportError):
    """Raised when every lane is taken, or an address is served by someone else."""

    code = "busy"


class ExpiredError(TransportError, TimeoutError):
    """Raised when the deadline of a request passed before its answer came."""

    code = "expired"


class RefusedError(TransportError, PermissionError):
    """Raised when the peer may not do this: another user, no certificate, no TLS off loopback."""

    code = "refused"


class ProtocolError(TransportError):
    """Raised when the peer sends what the format does not allow: garbage, another version, lengths that lie."""

    code = "protocol"


class SchemaError(TransportError, ValueError):
    """Raised when arrays do not fit the schema, or the two sides have different ones."""

    code = "schema"


class TooLargeError(TransportError, ValueError):
    """Raised when a request or an answer exceeds a limit of the server; nothing of it was sent."""

    code = "too_large"


class HandlerError(TransportError):
    """Raised in the client when the server's handler failed on this request; the text is the server's."""

    code = "handler"


# Of the weights. What a shortage leaves behind: nothing, no page, no reservation, no name.


class WeightsError(FirstTouchError):
    """Base of what loading and opening weights raises; by itself a fault of input or output."""

    code = "weights"
    exit_status = 9


class PoolTooSmallError(WeightsError):
    """Raised when the pool of huge pages has too few free ones; facts has need, free, reserved, nodes, in pages."""

    code = "pool_too_small"
    exit_status = 3


class MountTooSmallError(PoolTooSmallError):
    """Raised when `size=` of the mount allows fewer pages than needed, whatever the pool has."""

    code = "mount_too_small"


class NodeExhaustedError(WeightsError):
    """Raised when a NUMA node that was asked for has too few pages, or pages came to lie on another one."""

    code = "node_exhausted"
    exit_status = 4


class FragmentedError(WeightsError):
    """Raised when the kernel could not make as many huge pages as the settings allow: memory is in pieces."""

    code = "fragmented"
    exit_status = 4


class CgroupLimitError(WeightsError):
    """Raised when the hugetlb limit of this process's control group is lower than needed."""

    code = "cgroup_limit"
    exit_status = 5


class InvalidSafetensorsError(WeightsError, ValueError):
    """Raised for a model file that is no valid safetensors file; facts has defect, and shard and tensor if known."""

    code = "invalid_safetensors"
    exit_status = 6

    @property
    def defect(self) -> str:
        """Which rule is broken, one word per rule: hole, overlap, unknown_dtype, ..."""
        return str(self.facts.get("defect", ""))


class ChecksumMismatchError(WeightsError):
    """Raised when bytes in memory do not have the digest that they should have."""

    code = "checksum_mismatch"
    exit_status = 7


class NotReadyError(WeightsError):
    """Raised when there is no complete and valid image under a name, or a file is none."""

    code = "not_ready"
    exit_status = 8


class SourceChangedError(WeightsError):
    """Raised when a model file changed or was cut short while it was read."""

    code = "source_changed"


class LoaderBusyError(WeightsError):
    """Raised when another process is loading, replacing or removing the same model."""

    code = "loader_busy"
    exit_status = 11


class AlreadyLoadedError(WeightsError):
    """Raised when a different model is loaded under the name already. To replace it, swap."""

    code = "already_loaded"
    exit_status = 12


class MountMissingError(WeightsError):
    """Raised when there is no mounted hugetlbfs (or declared fallback) of the page size to load into."""

    code = "mount_missing"
    exit_status = 13
