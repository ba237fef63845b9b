"""The command line of kvbus."""
