"""Replicas of our server on Ray Serve.

``application`` makes one in a file of yours that ``serve run`` reads, ``build`` of words on the command line::

    serve run augury.integrations.ray_serve:build model=smollm2-135m replicas=2

A request goes through Ray's proxy to the ``door``, which has no model: it applies the server's limits, finds out which
conversation a request belongs to, and asks the replica that had the conversation before (``routing``). A ``replica`` is
one engine behind the very app that ``augury serve`` serves. Why a door, and not the app as Ray's ingress: Ray's proxy
sees no bodies, so it cannot tell conversations apart, and a request whose replica dies is lost there.
"""

from __future__ import annotations

from augury.integrations.ray_serve.application import application, build

__all__ = ["application", "build"]
