"""What mattered: which parameters trials differ by, how sure that is, and how sensitive the winner is to them."""
