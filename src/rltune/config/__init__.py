"""The settings of a sweep as typed and checked values. Imports nothing heavy."""
