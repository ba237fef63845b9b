"""kvbus: a ZeroMQ bus for KV-cache events between inference workers and KV-aware routers."""
