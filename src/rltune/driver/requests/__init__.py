"""Send requests to a running sweep and watch it, through its ledger, from any machine that can read the ledger."""
