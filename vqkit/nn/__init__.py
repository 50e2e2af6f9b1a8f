"""The one model family of vqkit: a small convolutional autoencoder around a one-layer vector quantizer.

``autoencoder`` holds encoder, decoder and their sum; ``quantizer`` is where every knob takes effect; ``nearest`` finds
the nearest code. Shapes are named by suffixes: N images or latents, H W height and width, C channels, K codes, D the
length of a latent and of a code.
"""
