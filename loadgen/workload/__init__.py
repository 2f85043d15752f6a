"""What is sent: lengths, tensors, pools of payloads.  Pure and seeded; it must not know protocols or time."""
