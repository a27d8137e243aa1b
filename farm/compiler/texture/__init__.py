"""Builds for Adreno whose operators read and write OpenCL images (textures), in front of the TVM that is installed.

A texture holds four channels in a pixel. A kernel is right only if it writes whole pixels, and TVM 0.27's own texture
pipeline makes many that write single channels. So farm decides here, operator by operator, what lies in textures:

- `layout` gives convolutions, and what lies between them, tensors whose last dimension is four channels, and schedules
  that give one pixel to one thread;
- `scopes` puts a tensor into a texture if the operators at both of its ends can be built so, else into a buffer;
- `lowering` refuses a kernel that would compute wrong numbers; `network` puts it together;
- `check` runs each texture operator on a device beside its result on the host.
"""
