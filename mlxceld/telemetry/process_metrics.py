"""The usual ``process_*`` metrics on systems without ``/proc``, macOS above all."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_RUSAGE_INFO_V0 = 0
# Taken when this module loads, which the daemon does within its first moments.
_STARTED = time.time()


class _RusageInfo(ctypes.Structure):
    """``struct rusage_info_v0`` of libproc."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        ("user_time", ctypes.c_uint64),
        ("system_time", ctypes.c_uint64),
        ("package_idle_wakeups", ctypes.c_uint64),
        ("interrupt_wakeups", ctypes.c_uint64),
        ("pageins", ctypes.c_uint64),
        ("wired_size", ctypes.c_uint64),
        ("resident_size", ctypes.c_uint64),
        ("physical_footprint", ctypes.c_uint64),
        ("start_time", ctypes.c_uint64),
        ("exit_time", ctypes.c_uint64),
    )


def resident_bytes() -> int:
    """What the process holds in memory now; where the system does not say, its peak so far."""
    library = ctypes.util.find_library("proc") if sys.platform == "darwin" else None
    if library is not None:
        info = _RusageInfo()
        pid_rusage = ctypes.CDLL(library).proc_pid_rusage
        if pid_rusage(os.getpid(), _RUSAGE_INFO_V0, ctypes.byref(info)) == 0:
            return int(info.resident_size)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Bytes on macOS, KiB on the others.
    return peak if sys.platform == "darwin" else peak * 1024


class PortableProcessCollector(Collector):
    """Start time, CPU, resident bytes and open files, by calls that every Unix has."""

    def collect(self) -> Iterator[Metric]:
        """The metrics, read now."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield CounterMetricFamily(
            "process_cpu_seconds",
            "Total user and system CPU time spent in seconds.",
            value=usage.ru_utime + usage.ru_stime,
        )
        yield GaugeMetricFamily(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            value=_STARTED,
        )
        yield GaugeMetricFamily(
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            value=resident_bytes(),
        )
        yield GaugeMetricFamily(
            "process_max_fds",
            "Maximum number of open file descriptors.",
            value=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
        yield GaugeMetricFamily(
            "process_open_fds",
            "Number of open file descriptors.",
            value=sum(1 for _ in Path("/dev/fd").iterdir()),
        )
