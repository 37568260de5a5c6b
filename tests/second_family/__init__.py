"""A second model family, added by this folder, one entry of FAMILIES and one preset: it proves that nothing else is needed.

Its conditioning is a reference picture's colour beside two text encoders, its autoencoder works two latent frames at a time, its
transformer has two stacks of layers, and its videos are made in chunks, each of which sees a memory of those before it. With the
video it makes a sound, from latents of its own. It makes no sense of a prompt; it is as small as the seam allows.
"""
