"""What is asked of a sweep while it runs, and how it is watched: through its ledger, from any machine that sees it."""
