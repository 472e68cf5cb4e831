"""Keep what is true of a sweep: its ledger, lease, folder and outcome, and Optuna's study, which is made of it."""
