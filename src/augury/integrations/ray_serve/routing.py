"""Who answers: the replica that had the conversation before, and the next one where that is full or gone."""

from __future__ import annotations

import asyncio

from ray.exceptions import RayError
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from augury.integrations.ray_serve.affinity import ranked
from augury.integrations.ray_serve.wire import Wanted

_PROBE_SECONDS = 1.0
"""In which a replica says how much it has to do; one that does not is passed over."""


class ByConversation(RequestRouter):  # type: ignore[misc] # Ray ships no types
    """Ray's router, as a handle has one in its own process; the first argument of every call is a ``Wanted``."""

    def initialize_state(self, *, slots: int) -> None:
        """See ``RequestRouter``; ``slots``: requests that a replica runs at once, one more would wait."""
        self._slots = slots

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """All replicas, the best first, each in a rank of its own."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        wanted: Wanted = pending_request.args[0]
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if wanted.turn is not None:
            return [[by_name[sorted(by_name)[wanted.turn % len(by_name)]]]]
        order = ranked(wanted.key, by_name)
        order.sort(key=lambda name: name in wanted.avoid)
        for name in order:
            if name not in wanted.avoid and await self._free(by_name[name]):
                order.sort(key=lambda other: other != name)
                break
        return [[by_name[name]] for name in order]

    async def _free(self, replica: RunningReplica) -> bool:
        """Whether a request would run at once. What is remembered may be too much, as it is told of starts alone."""
        known = self.replica_queue_len_cache.get(replica.replica_id)
        if known is not None and known < self._slots:
            return True
        try:
            now = await asyncio.wait_for(replica.get_queue_len(deadline_s=_PROBE_SECONDS), _PROBE_SECONDS)
        except (RayError, TimeoutError):
            return False
        self.replica_queue_len_cache.update(replica.replica_id, now)
        return bool(now < self._slots)
