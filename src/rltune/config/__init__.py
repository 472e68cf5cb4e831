"""The settings of a sweep as typed values. Imports nothing heavy."""
