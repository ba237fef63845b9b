"""The command line of kvbus: one module a command under `commands`, and how commands end, listen and print beside it.

A command parses, calls one library function and renders. What a machine or another program could want belongs into `kvbus`.
"""
