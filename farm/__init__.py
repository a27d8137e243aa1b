"""farm: a lab daemon that turns a host with Android phones into a measurement lab for ML compilers."""

__version__ = "0.1.0"
