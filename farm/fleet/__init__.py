"""Floor 4. Phones: identity, provisioning, RPC server, one agent task per phone."""
