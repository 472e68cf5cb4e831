"""The worker's side of a trial: build, train, report, save, and go on with the next trial in the same process."""
