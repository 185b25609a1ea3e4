package preferred

import (
	"fmt"
	"math/bits"
)

// Entry describes the GPUs that a request for N GPUs would get now.
type Entry struct {
	N int
	// Score is score(S) of the best choice, Loss what it costs the rest, both
	// in MB/s. A scheduler that prefers nodes by weight*Score - lossWeight*Loss
	// gives large pods the best-connected nodes and small ones the leftovers.
	Score, Loss int
	// HCAs is the number of fabric HCAs with a working port next to the chosen GPUs: below the same
	// host bridge or closer, virtual functions of one port counted once.
	HCAs int
}

// Table reports what requests of every size would get of the free GPUs, by size.
// Sizes that do not fit have no entry. Lost GPUs are not free.
func (s *Scores) Table(free uint64) []Entry {
	free &= s.usable
	entries := make([]Entry, 0, bits.OnesCount64(free))
	for n := 1; n <= bits.OnesCount64(free); n++ {
		set, err := s.Choose(free, 0, n)
		if err != nil {
			break
		}
		entries = append(entries, Entry{N: n, Score: s.Score(set), Loss: s.Loss(set, free), HCAs: s.Aligned(set)})
	}
	return entries
}

// Aligned is Entry.HCAs of any set of GPUs.
func (s *Scores) Aligned(set uint64) int {
	near := uint64(0)
	for left := set & s.all(); left != 0; left &= left - 1 {
		near |= s.rails[bits.TrailingZeros64(left)]
	}
	return bits.OnesCount64(near)
}

// Annotation returns the JSON of a table, for the annotation
// [github.com/heddle-dev/heddle/api/wellknown.GPUTopology]:
//
//	{"1":{"score":0,"loss":59750,"hcas":1},"2":{…}}
//
// The keys are in numerical order without blanks, so that equal tables are equal texts. An empty
// table is {}: no GPU is free.
func Annotation(entries []Entry) string {
	b := []byte{'{'}
	for i, e := range entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `"%d":{"score":%d,"loss":%d,"hcas":%d}`, e.N, e.Score, e.Loss, e.HCAs)
	}
	return string(append(b, '}'))
}
