"""Deliberate faults, each of which verification or a checker must find: the controls of everything that checks."""
