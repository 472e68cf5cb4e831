"""The settings of a sweep as typed, checked values. Imports nothing heavy."""
