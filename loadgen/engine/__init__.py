"""The only waiting room: waits until due, sends, stamps, records.  It must not know tensors or reports."""
