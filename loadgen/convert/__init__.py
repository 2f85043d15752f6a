"""PyTorch models to served models, proven at each step.  It must not know load or time."""
