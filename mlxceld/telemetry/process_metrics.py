"""The usual ``process_*`` metrics on systems without ``/proc``, macOS above all."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class PortableProcessCollector(Collector):
    """Start time, CPU, resident bytes and open files."""

    def collect(self) -> Iterator[Metric]:
        """The metrics, read now."""
        process = psutil.Process()
        with process.oneshot():
            cpu = process.cpu_times()
            yield CounterMetricFamily(
                "process_cpu_seconds",
                "Total user and system CPU time spent in seconds.",
                value=cpu.user + cpu.system,
            )
            yield GaugeMetricFamily(
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                value=process.create_time(),
            )
            yield GaugeMetricFamily(
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                value=process.memory_info().rss,
            )
            yield GaugeMetricFamily(
                "process_open_fds",
                "Number of open file descriptors.",
                value=process.num_fds(),
            )
        yield GaugeMetricFamily(
            "process_max_fds",
            "Maximum number of open file descriptors.",
            value=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
