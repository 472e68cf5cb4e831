"""Send requests to a running sweep, and watch it, through its ledger; works from any machine."""
