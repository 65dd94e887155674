"""Asks an engine over its own wire whether it serves."""

from __future__ import annotations

import secrets

import zmq

from tenora_engine import wire


def engine_answers(address: str, timeout_ms: int = 1000) -> bool:
    """Whether the engine at `address` answers `Hello` with its `Status`."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    try:
        socket.connect(address)
        gateway_id = f"probe-{secrets.token_hex(4)}"
        socket.send(wire.encode(wire.Hello(gateway_id=gateway_id)))
        answered = bool(socket.poll(timeout_ms)) and isinstance(wire.decode_to_gateway(socket.recv()), wire.Status)
        if answered:
            socket.send(wire.encode(wire.Goodbye(gateway_id=gateway_id)))
        return answered
    finally:
        socket.close()
        context.term()
