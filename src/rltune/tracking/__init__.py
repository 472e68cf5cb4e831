"""Deliver a sweep from its ledger to trackers such as MLflow, without ever blocking or failing a trial."""
