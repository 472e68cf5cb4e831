"""The service of ``rltune serve``: a queue that runs submitted sweeps in turn, a REST API and a web page."""
