# front
