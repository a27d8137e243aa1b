"""All that must survive `kill -9`: the schema, named statements over it, and one writer thread.

`Store.open` checks, creates or migrates the database (`opening`, `migrations`), counts the start (`epoch`)
and returns a `Store`: one attribute per table, each a `TableAccess` over the shared `Database`.

A read opens a short connection where it is called. A write is a function of a connection: `Database.write` adds its
events and hands both to the `Writer` thread, which commits the writes that arrived together in one `BEGIN IMMEDIATE`
transaction and answers after the commit. A refused constraint raises `store_conflict` for that write alone. A full
disk or lost server is a `DatabaseOutage`: each write raises StoreWriteError until it is over, and `WriteRetrier`
repeats those that must not be lost. The same statements run on SQLite (default) and PostgreSQL. There several daemons
may write events: `event_numbers` gives them their order, `EventFollower` shows it to readers.
"""
