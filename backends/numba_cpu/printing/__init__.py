"""From nests to source: one printer for each kind of stage, walking the nest that was chosen."""
