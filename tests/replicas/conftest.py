"""A cluster of Ray on this machine, and a model to compare with that nobody else asks."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before Ray is imported, which reads them then: a machine that is busy takes its time, is not to start processes that
# nobody uses, and answers are not to wait for everything else, as what Ray runs does otherwise.
os.environ |= {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}

import pytest
import ray
from ray import serve
from replicated import NAME, Cluster, free_port

import augury


@pytest.fixture(scope="session")
def alone():
    """The same model by itself, one question at a time, without drafting."""
    with augury.load(NAME, drafters="none", max_model_len=1024, max_num_seqs=1, threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster whose proxy listens; what it runs, tests say. It ends before those of ``serve run`` begin."""
    port = free_port()
    ray.init(num_cpus=6, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield Cluster(port)
    serve.shutdown()
    ray.shutdown()


@pytest.fixture
def two(cluster) -> Cluster:
    """Two replicas of two requests each, both alive."""
    cluster.run()
    return cluster
