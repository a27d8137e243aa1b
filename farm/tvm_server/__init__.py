"""The TVM server: one TCP port for unmodified TVM clients, with a tracker and a gate behind it.

`listener.Listener` accepts connections and distinguishes the two kinds by their first int32. `tracker.Tracker` answers
the tracker protocol: a REQUEST waits in leasing (`TrackerBackend`) for a phone and is answered with this port and a
match key. The client then opens a session with that key: `gate.gate.Gate` asks its `Route` for the phone, makes the
handshake with the phone's server and copies bytes until either side ends. `wire` has the byte formats, without I/O.
Port and sessions are in the process `farm gate`; `server.TvmServer`, in the daemon, has the tracker and answers the
gate's questions. `external_rules` holds servers that registered themselves.
"""
