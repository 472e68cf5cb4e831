"""A sweep from Python or a notebook: the call that runs one, and the object that holds what came of it."""
