"""What kvbus costs, measured beside what else one could run: real processes, real sockets, ratios of one run.

`load` makes the events, `loader` and `sink` are the processes at both ends, `middles`, `assembly` and `peer` are what may stand
between them, `rig` joins them and takes one measurement, `series` interleaves the variants, `report` and `plot` show what came
out. `micro`, `pending`, `scaling`, `soak` and `goals` are further questions with the same rules.

Figures of one machine and moment mean little: cores are shared and clocks drift. So every number is printed beside that of
the baselines, taken in the same run in turns, and what is compared is CPU time per ingested event.

Nothing that kvbus needs to run may be here, and nothing here is imported by other rooms.
"""
