"""Pure reading of run folders: summaries, doubts, verdicts.  It must not know live objects or sockets."""
