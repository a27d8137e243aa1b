"""Stored results of benches as clients see them: rows of the verb `history.list`.

series.py    rows that may be compared with each other, oldest first, the changes of level in them, and a row as flat
             columns, the same for every format (pure)
silence_rules.py  when a series with a rhythm has stopped (pure)
formats.py   files: JSON lines, CSV, Parquet, Bencher's JSON, OpenMetrics; runs in an MLflow tracking server
board.py     one page of models x phones that needs no server (board.html)
"""
