"""Our drafters in other people's loops, and our server under other people's replicas."""
