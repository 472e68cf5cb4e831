"""Store a sweep in its ledger, a database; also its lease, folder and summary, and the Optuna study made from it."""
