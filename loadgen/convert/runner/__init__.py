"""What a converter copies into a model's version folder, to run inside the server."""
