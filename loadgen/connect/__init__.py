"""How a connection to a target is made: headers, TLS, and why it failed in words.  It must not know requests."""
