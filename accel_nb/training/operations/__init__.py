"""Operations of all ranks together over nested data, and the walking and cutting of such data."""
