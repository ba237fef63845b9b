"""The whole bus in one process, from one seed, in virtual time.

`World(seed).run()` draws a topology, a workload and a mix of faults (`draw`), lets workers with real offloading engines, a broker
and subscribers talk over links that do what ZeroMQ does (`network`), breaks things (`faults`) while promises are checked at every
step, and then stops breaking them: now everything has to converge, or to have said why it cannot. What may be believed is decided
by a dumb oracle (`truth`, `view_log`), which shares no code with the rules that it judges.

The rules are driven through the same calls as in a process of their own. What does not belong here: rules. A shell's order of
work (`broker_process`, `subscriber_process`) is retold here, because the shells own sockets; it has to follow them.
"""
