"""What a result needs to be reproduced: the machine, the software on it, and what of them does not go together."""
