"""What is kept between launches: the file, what it says, and the launch that comes of it and of what is said."""
