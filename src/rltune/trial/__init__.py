"""Run trials in a worker: build, train, report, save, start over."""
