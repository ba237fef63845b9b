"""Bytes to values and back: frames, topics, envelopes and every producer's encoding of an event.

This room knows what bytes mean and nothing of what follows from it: no rule about streams, agreement or views lives here, and
no socket. Whatever comes in, it answers with a value or a `WireError`, in time and memory bounded by the size of the input.
`PROTOCOL.md` beside this file is the contract.
"""
