"""What a subscriber sees of the stream: filters, and a view's own batches and numbers.

What does not belong here: keeping batches for replay (`streams`), sending them (`broker`), counting votes (`aggregate`).
"""
