"""One file per verb: parse, one library call, print."""
