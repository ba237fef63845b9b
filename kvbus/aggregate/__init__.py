"""Agreement between workers: which events every worker of a group has emitted, and in which order they may go out.

The room counts opaque hashable keys for one worker group at one data-parallel rank. It refuses to know what an event looks
like on the wire (a callable describes it), where events come from, what their numbers prove, and who reads the result.

* `description`  what must be known of an event in order to count it
* `occurrence`   one pending (event, occurrence) and who has voted for it
* `segment`      the Counter: all that is pending between two clears
* `membership`   the workers, their bits and their accounts
* `outlet`       the way out, and the queue in front of it while it is shut
* `state`        all of that as plain values, for who outlives the process
* `aggregator`   `KVEventAggregator`, which joins these and holds the rules about time, loss and membership
"""
