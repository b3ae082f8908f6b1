package storage

// A Located store can say where it is, so that a copy of its objects is told from it.
// Location may be called concurrently.
type Located interface {
	// Location names the place of the objects: the same for every process that uses
	// them, and another one for a copy. Empty: not known.
	Location() string
}

// LocationOf returns the location of s if it is Located; else "".
func LocationOf(s Store) string {
	if located, ok := s.(Located); ok {
		return located.Location()
	}
	return ""
}
