"""Run a sweep from the request to the registered champion; this code runs in the driver process."""
