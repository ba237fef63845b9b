"""How options come to be: a file, the environment and flags, each stronger than the one before, read into structs.

Texts and parsed documents go in; values and their origins come out, or every problem at once. Holds no option of its own
(`config` does), opens no file and reads no environment: the command line does, and hands over what it found.
"""
