"""MLflow, filled from the ledger: never raises into a trial, never blocks one."""
