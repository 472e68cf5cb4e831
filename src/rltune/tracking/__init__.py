"""Deliver a sweep from its ledger to trackers such as MLflow; a tracker never blocks or fails a trial."""
