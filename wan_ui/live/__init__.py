"""The live view: generate a video that keys and prompts steer."""
