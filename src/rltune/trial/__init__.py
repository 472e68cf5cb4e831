"""What runs in a worker: build, train, report, checkpoint, reset."""
