"""One module a command: parse, call one library function, render. Each exposes `register(app)`."""
