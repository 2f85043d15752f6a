"""The traffic profile: YAML in, a frozen description of load out.  It must not know servers, bytes or clocks."""
