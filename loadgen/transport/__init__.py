"""Moves prepared bytes over sockets and stamps them.  It must not know tensors, plans or reports."""
