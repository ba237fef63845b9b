"""The tests; a package so that its modules are found as `tests.shared_data` whatever else is installed."""
