"""Where finished requests go besides the run folder.  It must not know how they were sent."""
