"""What a person asked for, as typed values. Imports nothing heavy."""
