"""How databases of earlier farms become this one's: one file per step in versions/, run by farm.store.migrate."""
