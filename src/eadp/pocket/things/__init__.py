"""The world of things: scenes of everyday things in several styles, captions, questions and clips about them."""
