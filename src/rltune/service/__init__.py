"""A service that runs submitted sweeps one after another: its queue, its REST interface, its page."""
