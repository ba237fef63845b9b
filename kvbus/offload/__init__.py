"""The worker side: what a real engine does with its KV blocks outside the GPU, without the GPU.

Here is the model of vLLM's offloading connector: managers that decide what is kept and what is evicted, the tracker that turns
their events into the wire's, block sizes and prefix matching of hybrid models, and the traces that drive all of it. Names of
classes, methods and fields are vLLM's.

Nothing here copies a byte of KV data, opens a file or a socket, or knows the time.
"""
