"""Who may talk to whom: keys, who is let in, and who was refused and why.

CURVE is ZeroMQ's own encryption and authentication. The side that binds is its server, the side that connects its client; both
have a pair of keys, a client knows the server's public key, and the server has a list of the clients that it lets in.

Here are keys (`keys`), the files that hold them (`key_files`), the gate that ZeroMQ asks before it lets a peer in (`gate`), and
words for what happens to one that does not get in (`refusals`). Options of sockets are set in `kvbus/sockets.py`. No secret
key is ever in an error, a log, a status or a `repr`.
"""
