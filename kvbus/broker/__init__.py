"""The broker: from workers' sockets to views.

`node` holds every rule and no socket: bytes and time in, frames and a deadline out. `loop` gives it sockets and one thread,
`server` is the object that others start and stop. In between, `intake` knows where batches come from, `membership` who must
agree, `rankgroup` turns batches into released runs, `output` keeps what a view sends, `notices` and `status` tell what happened.

What does not belong here: what a number proves (`streams`), how votes are counted (`aggregate`), what a subscriber sees
(`views`).
"""
