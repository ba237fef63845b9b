"""Streams: what a sequence number proves, and how a hole is found, filled or declared.

`sequence` says what one number proves, `receiver` keeps one incoming stream in order (hold, replay, duplicate, restart, declared
loss), `ring` keeps what an outgoing stream has sent, `serving` answers replay requests from it.

This room knows numbers, bytes and time. It refuses to hold sockets, clocks, threads, the meaning of a payload, or the policy
of what a declared loss costs.
"""
