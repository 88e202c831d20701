"""The notebook's face: where a launch is called and where it is seen."""
