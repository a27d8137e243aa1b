"""The web page: fleet, devices, leases, bundles, jobs; the same verbs as the job door, for people with a browser."""
