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
	// maxGPUs is the largest request that a table answers.
	maxGPUs = 256
)

// Table is what a node publishes of its GPUs' topology: what a request for so many
// GPUs would get, and what that costs its other GPUs, in MB/s. Entry i is of i GPUs: a
// scheduler asks hundreds of nodes for each pod.
type Table []entry

// entry is one of a request; ok is false where nothing valid is published.
type entry struct {
	score, loss int64
	ok          bool
}

// ParseTable reads the annotation; an invalid one is empty.
func ParseTable(text string) Table {
	var published map[string]struct {
		Score *int64 `json:"score"`
		Loss  *int64 `json:"loss"`
	}
	if len(text) > maxTable || json.Unmarshal([]byte(text), &published) != nil {
		return nil
	}
	var t Table
	valid := func(v *int64) bool { return v != nil && *v >= 0 && *v <= MaxScore }
	for key, e := range published {
		gpus, err := strconv.Atoi(key)
		if err != nil || gpus < 0 || gpus > maxGPUs || strconv.Itoa(gpus) != key || !valid(e.Score) || !valid(e.Loss) {
			continue
		}
		if missing := gpus + 1 - len(t); missing > 0 {
			t = append(t, make(Table, missing)...)
		}
		t[gpus] = entry{*e.Score, *e.Loss, true}
	}
	return t
}

// Of returns the entry for a request, and false without a valid one. Both values
// are 0 to MaxScore.
func (t Table) Of(gpus int64) (score, loss int64, ok bool) {
	if gpus < 0 || gpus >= int64(len(t)) {
		return 0, 0, false
	}
	e := &t[gpus]
	return e.score, e.loss, e.ok
}
