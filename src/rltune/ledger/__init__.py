"""What a sweep leaves on disk: the ledger, checkpoints, folder, lock and outcome."""
