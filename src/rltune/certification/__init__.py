"""Which policy wins on fresh seeds, and how sure that is."""
