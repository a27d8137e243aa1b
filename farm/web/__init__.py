"""The web page: fleet, devices, leases, bundles, jobs; the same verbs as control verbs, for people with a browser."""
