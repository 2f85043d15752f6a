"""A test model that cannot be loaded, to see that the reason reaches the user."""


class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("the weights of this model are made of cheese")

    def execute(self, requests):
        return []
