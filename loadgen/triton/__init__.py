"""The control plane: what a KServe v2 or Triton server says of itself, and the embedded server."""
