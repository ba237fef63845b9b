"""Workers that are found rather than named: which are there, from a file, from DNS, or from engines that are asked.

The modules that read are pure: text in, workers out, or the reason why not. `lookups` goes out to the world and `watch` does so
again and again, in a thread of its own, and hands each new membership to the broker, which takes it as it takes a new file on
SIGHUP. Whatever cannot be found out leaves the workers as they were: a broken file is no departure.
"""
