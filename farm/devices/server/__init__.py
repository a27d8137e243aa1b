"""The runtime on a phone: files, the RPC server, and the residue of a lease.

`provision` makes device scripts and a bundle whole on the phone, hash by hash; it notes the state of a phone before a
person's lease and removes the rest after it. `RpcServer` starts, adopts, follows and ends the server through
`rpc_supervise.sh`. `phone_paths` names every file on the phone. All of them are called by
the agent, in one shell round trip each.
"""
