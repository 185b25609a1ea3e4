package preferred

// Pair is pair(i, j) in MB/s; 0 for a GPU with itself.
func (s *Scores) Pair(i, j int) int { return int(s.pairs[i*s.n+j]) }

// Usable is the mask of the GPUs that are not lost.
func (s *Scores) Usable() uint64 { return s.usable }
