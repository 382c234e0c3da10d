from dataclasses import fields, replace

from prometheus_client.parser import text_string_to_metric_families

from mlxceld.telemetry.cache_metrics import REJECT_REASONS
from mlxceld.telemetry.cache_stats import CacheStats
from mlxceld.telemetry.histogram import Histogram
from mlxceld.telemetry.metrics import OUTCOMES, Metrics
from mlxceld.telemetry.process_metrics import PortableProcessCollector
from mlxceld.telemetry.refusals import CODES, ENDPOINTS, RefusalCounts
from mlxceld.telemetry.status import EngineState, EngineStatus, MemoryStatus, ModelStatus

MODEL = ModelStatus(
    id="tiny",
    path="/models/tiny",
    family="llama",
    device="cpu",
    dtype="float32",
    context_length=128,
    vocab_size=320,
    parameters=1000,
    weight_bytes=4000,
    layer_caches={"pageable": 2},
    batching="full",
    batching_reason="",
    loaded_at=1.0,
)

PROMISED_NAMES = """
prompt_cache_hits_total prompt_cache_misses_total prompt_cache_inserts_total
prompt_cache_removals_total prompt_cache_evictions_total prompt_cache_reject_total
prompt_cache_entries prompt_cache_bytes prompt_cache_capacity_bytes
prompt_cache_prefix_tokens_reused_total
prompt_cache_snapshot_hits_total prompt_cache_snapshot_misses_total
prompt_cache_snapshot_inserts_total prompt_cache_snapshot_removals_total
prompt_cache_snapshot_evictions_total prompt_cache_snapshot_entries
prompt_cache_snapshot_bytes prompt_cache_snapshot_capacity_bytes
prompt_cache_snapshot_supersedes_total
cache_pool_paged_block_size cache_pool_paged_blocks_allocated cache_pool_paged_blocks_live
cache_pool_paged_blocks_free cache_pool_paged_blocks_shared cache_pool_paged_bytes_reserved
cache_pool_paged_bytes_in_use cache_pool_paged_block_budget
requests_total requests_refused_total requests_running requests_waiting prompt_tokens_total
prompt_tokens_computed_total completion_tokens_total
time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket
request_queue_seconds_bucket request_prefill_seconds_bucket request_decode_seconds_bucket
request_seconds_bucket batch_size_bucket engine_step_seconds_bucket
engine_steps_total memory_active_bytes memory_peak_bytes memory_cache_bytes preemptions_total
queue_rejections_total prefetch_tokens_total config_last_reload_successful build_info
prompt_cache_snapshot_prefix_tokens_reused_total trace_events_dropped_total log_lines_dropped_total
ready engine_faults_total
"""


def scrape(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    body, content_type = metrics.render("")
    assert content_type.startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, "a series must appear once"
            found[key] = sample.value
    return found


def value(found: dict, name: str, **labels: str) -> float:
    return found[f"mlxcel_{name}", frozenset(labels.items())]


def test_every_name_is_there_at_the_first_scrape() -> None:
    found = scrape(Metrics(EngineStatus))
    names = {name for name, _ in found}
    assert {f"mlxcel_{name}" for name in PROMISED_NAMES.split()} <= names
    assert {
        "process_start_time_seconds",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_cpu_seconds_total",
    } <= names


def test_refusals_are_counted_by_outcome_and_by_code() -> None:
    refusals = RefusalCounts()
    for code in ("invalid_request", "invalid_request", "queue_full"):
        refusals.add("chat", code)
    refusals.add("other", "unknown_url")
    outcomes = {("chat", "rejected"): 1, ("chat", "stop"): 4}
    found = scrape(Metrics(lambda: EngineStatus(outcomes=outcomes), refusals))
    assert value(found, "requests_total", endpoint="chat", outcome="refused") == 2
    assert value(found, "requests_total", endpoint="chat", outcome="rejected") == 1
    assert value(found, "requests_total", endpoint="chat", outcome="stop") == 4
    assert value(found, "requests_refused_total", endpoint="chat", code="queue_full") == 1
    assert value(found, "requests_refused_total", endpoint="chat", code="invalid_request") == 2
    assert value(found, "requests_refused_total", endpoint="other", code="unknown_url") == 1


def test_every_label_value_is_zero_at_the_first_scrape() -> None:
    found = scrape(Metrics(EngineStatus))
    for endpoint in ENDPOINTS:
        for outcome in OUTCOMES:
            assert value(found, "requests_total", endpoint=endpoint, outcome=outcome) == 0
        for code in CODES:
            assert value(found, "requests_refused_total", endpoint=endpoint, code=code) == 0
    assert value(found, "requests_refused_total", endpoint="other", code="unknown_url") == 0
    assert len(REJECT_REASONS) == 7
    for reason in REJECT_REASONS:
        assert value(found, "prompt_cache_reject_total", reason=reason) == 0
    for family in ("prompt_cache", "prompt_cache_snapshot"):
        for reason in ("lru", "ttl", "flush", "resize", "consumed", "replaced"):
            assert value(found, f"{family}_removals_total", reason=reason) == 0
        for reason in ("lru", "ttl"):
            assert value(found, f"{family}_evictions_total", reason=reason) == 0
    assert value(found, "request_seconds_bucket", le="+Inf") == 0
    assert value(found, "request_seconds_sum") == 0


def test_distinct_numbers_land_under_their_own_names() -> None:
    numbers = {
        field.name: 1000 + index
        for index, field in enumerate(fields(CacheStats))
        if field.type in ("int", "float")
    }
    cache = replace(CacheStats(), **numbers)
    found = scrape(
        Metrics(
            lambda: EngineStatus(
                state=EngineState.READY,
                model=MODEL,
                running=3,
                waiting=4,
                steps=5,
                preemptions=6,
                queue_rejections=7,
                memory=MemoryStatus(active=8, peak=9, cache=10),
                outcomes={("chat", "stop"): 11},
                cache=cache,
            )
        )
    )
    for name, number in (
        ("requests_running", 3),
        ("requests_waiting", 4),
        ("engine_steps_total", 5),
        ("preemptions_total", 6),
        ("queue_rejections_total", 7),
        ("memory_active_bytes", 8),
        ("memory_peak_bytes", 9),
        ("memory_cache_bytes", 10),
        ("prompt_cache_hits_total", cache.hits),
        ("prompt_cache_misses_total", cache.misses),
        ("prompt_cache_inserts_total", cache.inserts),
        ("prompt_cache_entries", cache.entries),
        ("prompt_cache_bytes", cache.bytes),
        ("prompt_cache_capacity_bytes", cache.capacity_bytes),
        ("prompt_cache_prefix_tokens_reused_total", cache.prompt_tokens_reused),
        ("prompt_cache_snapshot_hits_total", cache.snapshot_hits),
        ("prompt_cache_snapshot_misses_total", cache.snapshot_misses),
        ("prompt_cache_snapshot_inserts_total", cache.snapshot_inserts),
        ("prompt_cache_snapshot_entries", cache.snapshot_entries),
        ("prompt_cache_snapshot_bytes", cache.snapshot_bytes),
        ("prompt_cache_snapshot_capacity_bytes", cache.snapshot_capacity_bytes),
        ("prompt_cache_snapshot_supersedes_total", cache.snapshot_supersedes),
        ("cache_pool_paged_block_size", cache.paged_block_size),
        ("cache_pool_paged_block_budget", cache.paged_block_budget),
        ("prompt_tokens_total", cache.prompt_tokens),
        ("prompt_tokens_computed_total", cache.prompt_tokens_computed),
        ("completion_tokens_total", cache.completion_tokens),
        ("prefetch_tokens_total", cache.prefetch_tokens),
    ):
        assert value(found, name) == number, name
    assert value(found, "requests_total", endpoint="chat", outcome="stop") == 11
    assert value(found, "ready") == 1
    for reason in REJECT_REASONS:
        expected = getattr(cache, f"reject_{reason}")
        assert value(found, "prompt_cache_reject_total", reason=reason) == expected
    for reason, attribute in (("lru", "evictions_lru"), ("replaced", "replaced")):
        assert value(found, "prompt_cache_removals_total", reason=reason) == getattr(
            cache, attribute
        )
        assert value(found, "prompt_cache_snapshot_removals_total", reason=reason) == getattr(
            cache, f"snapshot_{attribute}"
        )
    info = next(labels for name, labels in found if name == "mlxcel_model_info")
    assert ("id", "tiny") in info
    assert ("device", "cpu") in info


def test_buckets_are_cumulative_and_bounds_inclusive() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    for seen in (1.0, 1.5, 4.0, 9.0):
        histogram.observe(seen)
    found = scrape(Metrics(lambda: EngineStatus(histograms={"batch_size": histogram.snapshot()})))
    assert [value(found, "batch_size_bucket", le=le) for le in ("1.0", "2.0", "4.0", "+Inf")] == [
        1,
        2,
        3,
        4,
    ]
    assert value(found, "batch_size_count") == 4
    assert value(found, "batch_size_sum") == 15.5


def test_one_scrape_reads_one_snapshot() -> None:
    reads = []

    def snapshot() -> EngineStatus:
        reads.append(None)
        return EngineStatus(running=len(reads), waiting=len(reads))

    metrics = Metrics(snapshot)
    for expected in (1, 2):
        found = scrape(metrics)
        assert value(found, "requests_running") == value(found, "requests_waiting") == expected


def test_a_failed_reload_shows_until_one_goes_through() -> None:
    metrics = Metrics(EngineStatus)
    assert value(scrape(metrics), "config_last_reload_successful") == 1
    metrics.reload_successful = False
    assert value(scrape(metrics), "config_last_reload_successful") == 0
    metrics.reload_successful = True
    assert value(scrape(metrics), "config_last_reload_successful") == 1


def test_a_fault_or_any_state_but_ready_is_not_ready() -> None:
    for state in EngineState:
        found = scrape(Metrics(lambda state=state: EngineStatus(state=state)))
        assert value(found, "ready") == (state is EngineState.READY)
    faulty = EngineStatus(state=EngineState.READY, fault="three in a row")
    assert value(scrape(Metrics(lambda: faulty)), "ready") == 0


def test_openmetrics_is_given_to_who_asks() -> None:
    body, content_type = Metrics(EngineStatus).render("application/openmetrics-text;version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_process_metrics_without_proc() -> None:
    found = {each.name: each.samples[0].value for each in PortableProcessCollector().collect()}
    assert found["process_resident_memory_bytes"] > 10 * 2**20
    assert found["process_cpu_seconds"] > 0
    assert found["process_start_time_seconds"] > 1_500_000_000
    assert 3 <= found["process_open_fds"] <= found["process_max_fds"]
