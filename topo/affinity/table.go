package affinity

import (
	"encoding/json"
	"strconv"
)

const (
	// maxTable is the longest text of a table that is read, in bytes, and MaxScore bounds
	// what a node publishes of itself.
	maxTable = 16 << 10
	MaxScore = 1 << 40
)

// Table is what a node publishes of its GPUs' topology: what a request for so many
// GPUs would get, and what that costs its other GPUs, in MB/s.
type Table map[string]struct {
	Score *int64 `json:"score"`
	Loss  *int64 `json:"loss"`
}

// ParseTable reads the annotation; an invalid one is empty.
func ParseTable(text string) (t Table) {
	if len(text) > maxTable || json.Unmarshal([]byte(text), &t) != nil {
		return nil
	}
	return t
}

// Of is the entry for a request; false if there is none, or an invalid one. Both values
// are 0 to MaxScore.
func (t Table) Of(gpus int64) (score, loss int64, ok bool) {
	entry, ok := t[strconv.FormatInt(gpus, 10)]
	if !ok || entry.Score == nil || entry.Loss == nil {
		return 0, 0, false
	}
	score, loss = *entry.Score, *entry.Loss
	return score, loss, score >= 0 && score <= MaxScore && loss >= 0 && loss <= MaxScore
}
