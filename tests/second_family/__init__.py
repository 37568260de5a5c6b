"""A second model family, added by this folder, one entry of FAMILIES and one preset: it proves that nothing else is needed.

Its conditions are two text encoders and the colour of a reference image. Its autoencoder works on two latent frames at a time,
and its transformer has two stacks of layers. Videos are generated in chunks, and each chunk sees a memory of the earlier
chunks. Audio is generated with the video, from separate latents. The model does not understand prompts, and is as small as the
interface allows.
"""
