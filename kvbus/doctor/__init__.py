"""Says why a set-up does not work: what was observed of endpoints goes in, findings come out.

Everything here is pure but for `knocking` and `examination`, which look with real sockets: names are resolved, ports tried, the
greeting of the ZMTP protocol is read, batches are listened to and replays asked for. What that means is told by the other
modules, each about one kind of trouble, from `Evidence` alone; so every diagnosis is tested without a network.

It only looks. Nothing is published, no more than a handful of replayed batches is asked for, and nothing is bound unless the
endpoint says so. What this room refuses to hold: how a stream is repaired, which is for `streams`; it reads numbers to judge.
"""
